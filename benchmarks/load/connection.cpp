#include "connection.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <vector>

namespace {

constexpr int ANSWER_SECONDS = 20;  // until a broker has to answer CONNECT or SUBSCRIBE

sockaddr_in loopback(int port, int above) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + static_cast<uint32_t>(above));
    return address;
}

}  // namespace

const char* Connection::name() const {
    switch (role) {
        case Role::publisher: return "publisher";
        case Role::subscriber: return "subscriber";
        case Role::churner: return "churner";
        case Role::guest: return "guest";
    }
    return "";
}

void Connection::make(int source) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) fail("no socket: %s", std::strerror(errno));
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (source) {
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
        sockaddr_in from = loopback(0, source);
        if (bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof from)) fail("bind: %s", std::strerror(errno));
    }
}

void Connection::open(int port) {
    if (fd < 0) make();
    sockaddr_in to = loopback(port, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) && errno != EINPROGRESS)
        fail("%s %d does not connect: %s", name(), index, std::strerror(errno));
}

void Connection::set_blocking(bool blocking) {
    fcntl(fd, F_SETFL, blocking ? 0 : O_NONBLOCK);
    timeval limit{blocking ? ANSWER_SECONDS : 0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

void Connection::open_session(int port, const std::string& client_id, bool clean) {
    open(port);
    set_blocking(true);
    append(connect_packet(client_id, clean, level));
    // A connection that is still on its way has a blocking send wait for it.
    flush();
    Bytes answer = receive_packet();
    if ((level == 5 ? answer.size() < 5 : answer.size() != 4) || answer[0] >> 4 != CONNACK || answer[3] != 0)
        fail("%s %d: CONNECT is refused", name(), index);
}

void Connection::subscribe(const std::vector<std::string>& filters, int qos) {
    append(subscribe_packet(1, filters, qos, level));
    flush();
    Bytes answer = receive_packet();
    while (answer[0] >> 4 == PUBLISH) answer = receive_packet();  // [MQTT-3.8.4-3]
    if (answer[0] >> 4 != SUBACK) fail("%s %d: no SUBACK", name(), index);
    if (answer.size() < filters.size() + 4) fail("%s %d: SUBACK is too short", name(), index);
    for (size_t place = answer.size() - filters.size(); place < answer.size(); ++place)
        if (answer[place] != qos)
            fail("%s %d: granted is %d in the place of QoS %d", name(), index, answer[place], qos);
}

Bytes Connection::receive_packet() {
    Bytes packet;
    size_t length = 2;
    for (size_t header = 0; packet.size() < length;) {
        uint8_t byte;  // rare enough to be read one by one
        if (recv(fd, &byte, 1, 0) != 1) fail("%s %d: no answer: %s", name(), index, std::strerror(errno));
        packet.push_back(byte);
        if (header == 0) {
            size_t known = whole_length(packet.data(), packet.size(), &header);
            length = known ? known : packet.size() + 1;
        }
    }
    return packet;
}

void Connection::watch(int epoll) {
    epoll_ = epoll;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = this;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event)) fail("epoll: %s", std::strerror(errno));
}

void Connection::want_writable(bool wanted) {
    if (wanted == wants_writable_ || epoll_ < 0) return;
    wants_writable_ = wanted;
    epoll_event event{};
    event.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = this;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

uint8_t* Connection::reserve(size_t count) {
    if (out_.size() < out_end_ + count) out_.resize(out_end_ + count);
    return out_.data() + out_end_;
}

void Connection::flush() {
    while (out_at_ < out_end_) {
        ssize_t count = send(fd, out_.data() + out_at_, out_end_ - out_at_, MSG_NOSIGNAL);
        if (count < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) break;
            fail("%s %d: the broker has closed: %s", name(), index, std::strerror(errno));
        }
        out_at_ += static_cast<size_t>(count);
    }
    if (is_idle()) out_at_ = out_end_ = 0;
    want_writable(!is_idle());
}

void Connection::close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
    epoll_ = -1;
    wants_writable_ = false;
    rest_have_ = 0;
    rest_sized_ = false;
    out_at_ = out_end_ = 0;
}

void Connection::reset() {
    linger now{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
}

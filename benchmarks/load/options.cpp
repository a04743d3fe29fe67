#include "options.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>

namespace {

struct Option {
    const char* name;
    const char* meaning;
    std::function<void(Options&, const std::string&)> set;
};

[[noreturn]] void wrong_usage(const std::string& text) {
    std::fprintf(stderr, "load: %s\n", text.c_str());
    std::exit(2);
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

double number(const std::string& text) {
    char* end = nullptr;
    double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || value < 0) wrong_usage("not a number: " + text);
    return value;
}

std::vector<int> numbers(const std::string& text) {
    std::vector<int> values;
    for (const auto& part : split(text)) values.push_back(static_cast<int>(number(part)));
    return values;
}

Mapping mapping(const std::string& text) {
    if (text == "pairs") return Mapping::pairs;
    if (text == "all") return Mapping::all;
    if (text == "wildcards") return Mapping::wildcards;
    if (text == "shared") return Mapping::shared;
    wrong_usage("not a mapping: " + text);
}

int qos(const std::string& text) {
    if (text == "mixed") return MIXED;
    if (text != "0" && text != "1" && text != "2") wrong_usage("not a QoS: " + text);
    return text[0] - '0';
}

template <class Value>
std::function<void(Options&, const std::string&)> to(Value Options::*member) {
    return [member](Options& options, const std::string& text) {
        options.*member = static_cast<Value>(number(text));
    };
}

const std::vector<Option>& all_options() {
    static const std::vector<Option> table = {
        {"mode", "flow, connect, cycle, idle or relay", [](Options& o, const std::string& t) { o.mode = t; }},
        {"ports", "where publishers and subscribers connect, in turn",
         [](Options& o, const std::string& t) { o.publish_ports = o.subscribe_ports = numbers(t); }},
        {"publish-ports", "where publishers connect, in turn",
         [](Options& o, const std::string& t) { o.publish_ports = numbers(t); }},
        {"subscribe-ports", "where subscribers connect, in turn",
         [](Options& o, const std::string& t) { o.subscribe_ports = numbers(t); }},
        {"pids", "processes whose CPU time is told", [](Options& o, const std::string& t) { o.pids = numbers(t); }},
        {"prefixes", "first levels of the topics; publisher p uses the one with p modulo their number",
         [](Options& o, const std::string& t) { o.prefixes = split(t); }},
        {"mapping", "pairs, all, wildcards or shared: who takes what",
         [](Options& o, const std::string& t) { o.mapping = mapping(t); }},
        {"publishers", "connections that publish", to(&Options::publishers)},
        {"subscribers", "connections that subscribe and check", to(&Options::subscribers)},
        {"topics", "topics of each publisher that come again and again", to(&Options::topics)},
        {"filters", "of the mapping wildcards, in all", to(&Options::filters)},
        {"level", "4 or 5, of the protocol: MQTT 3.1.1 or 5.0", to(&Options::level)},
        {"publisher-level", "of the publishers; otherwise that of the subscribers", to(&Options::publisher_level)},
        {"properties", "user properties of each message; at level 5", to(&Options::properties)},
        {"expiry", "seconds after which each message expires; at level 5", to(&Options::expiry)},
        {"qos", "0, 1, 2 or mixed: of the messages", [](Options& o, const std::string& t) { o.qos = qos(t); }},
        {"subscribe-qos", "of the subscriptions; otherwise that of the messages",
         [](Options& o, const std::string& t) { o.subscribe_qos = qos(t); }},
        {"window", "unacknowledged publishes of a publisher", to(&Options::window)},
        {"outstanding", "deliveries that may be missing at a time, of all publishers together",
         to(&Options::outstanding)},
        {"size", "bytes of payload, at least 16", to(&Options::size)},
        {"batch", "bytes in one write of a publisher; 0: one publish in each", to(&Options::batch)},
        {"fresh", "share of the messages whose topic never came before", to(&Options::fresh)},
        {"rate", "messages a second of all publishers together; 0: as fast as it goes", to(&Options::rate)},
        {"seconds", "how long is published", to(&Options::seconds)},
        {"patience", "seconds without a delivery after which what is missing is lost", to(&Options::patience)},
        {"slow", "subscribers beside those, which take everything and read slowly", to(&Options::slow)},
        {"slow-rate", "bytes a second that each of them reads", to(&Options::slow_rate)},
        {"churn", "connections that subscribe and unsubscribe all the time", to(&Options::churn)},
        {"connections", "of the modes connect, cycle and idle", to(&Options::connections)},
        {"parallel", "how many of them are on their way at a time", to(&Options::parallel)},
        {"durable", "1: sessions outlive their connections", to(&Options::durable)},
    };
    return table;
}

[[noreturn]] void help() {
    for (const auto& option : all_options()) std::printf("--%-16s %s\n", option.name, option.meaning);
    std::exit(0);
}

void check(const Options& options) {
    if (options.publish_ports.empty() || options.subscribe_ports.empty()) wrong_usage("--ports is missing");
    if (options.size < 16) wrong_usage("--size is less than 16");
    if (options.window < 1 || options.window > 16000) wrong_usage("--window is not from 1 to 16000");
    if (options.publishers < 1 || options.subscribers < 1) wrong_usage("nobody publishes or subscribes");
    if (options.fresh > 1) wrong_usage("--fresh is more than 1");
    if (options.mapping == Mapping::wildcards && (options.subscribers < 2 || options.filters < 2))
        wrong_usage("the mapping wildcards needs two subscribers and two filters");
    for (int level : {options.level, options.publisher_level})
        if (level != 4 && level != 5) wrong_usage("a level is 4 or 5");
    if (options.properties && options.publisher_level < 5) wrong_usage("--properties needs publishers at level 5");
    if (options.expiry && options.publisher_level < 5) wrong_usage("--expiry needs publishers at level 5");
    if (options.expiry && options.properties > 3) wrong_usage("--expiry goes with at most three --properties");
    if (options.level == 5 && options.mode != "flow") wrong_usage("only the mode flow has level 5");
}

}  // namespace

Options parse(int count, char** arguments) {
    Options options;
    for (int at = 1; at < count; at += 2) {
        const char* name = arguments[at];
        if (std::strcmp(name, "--help") == 0) help();
        const Option* found = nullptr;
        for (const auto& option : all_options())
            if (std::strncmp(name, "--", 2) == 0 && std::strcmp(name + 2, option.name) == 0) found = &option;
        if (found == nullptr) wrong_usage(std::string("no such option: ") + name);
        if (at + 1 == count) wrong_usage(std::string("no value for ") + name);
        found->set(options, arguments[at + 1]);
    }
    if (options.publisher_level < 0) options.publisher_level = options.level;
    check(options);
    if (options.mapping == Mapping::wildcards) options.topics = options.filters / 2;
    if (options.qos == MIXED && options.topics < 3) options.topics = 3;
    if (options.subscribe_qos < 0) options.subscribe_qos = options.qos;
    if (options.subscribe_qos == MIXED) options.subscribe_qos = 2;
    return options;
}

void fail(const char* format, ...) {
    std::fputs("load: ", stderr);
    va_list given;
    va_start(given, format);
    std::vfprintf(stderr, format, given);
    va_end(given);
    std::fputc('\n', stderr);
    std::exit(1);
}

# Declarations of native/*.hpp, where each is explained.

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** data, Py_ssize_t size) except -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    Py_ssize_t Py_REFCNT(PyObject* whole)

cdef extern from "native/bytes.hpp" namespace "txbroker" nogil:
    ctypedef unsigned char Byte
    uint32_t NONE
    void set_seeds(const Byte* random)
    void keep_memory()

cdef extern from "native/bailiwick.hpp" namespace "txbroker" nogil:
    cppclass NativeBailiwick "txbroker::Bailiwick":
        void set(const string& apex) except +
        void put(const string& apex) except +
        void drop(const string& apex) except +
        cbool has(const Byte* topic, size_t size) except +

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLLIN
    int EPOLLERR
    int EPOLLHUP
    cppclass epoll_data:
        int fd
    cppclass epoll_event:
        uint32_t events
        epoll_data data
    int epoll_wait(int epoll, epoll_event* events, int most, int timeout)

cdef extern from "<sys/uio.h>" nogil:
    cppclass iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    ctypedef uint32_t socklen_t
    cppclass sockaddr:
        pass
    ssize_t recv(int descriptor, void* buffer, size_t size, int flags)
    int accept4(int descriptor, sockaddr* address, socklen_t* size, int flags)
    int AF_INET6
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int SOCK_CLOEXEC
    int SOCK_NONBLOCK

cdef extern from "native/output.hpp" namespace "txbroker":
    size_t room_of(size_t most, size_t limit)

    cppclass Output:
        size_t size()
        size_t held()
        char* extend(size_t size) except +
        void append(const void* data, size_t size) except +
        void share(PyObject* owner, const char* at, size_t size) except +
        int gather(iovec* vectors)
        void consume(size_t size)
        void clear()
        PyObject* sole()

    ssize_t send_vectors(int descriptor, iovec* vectors, size_t count, int flags)

cdef extern from "native/tables.hpp" namespace "txbroker" nogil:
    cppclass PacketIds:
        cppclass Slot:
            uint16_t id
            uint8_t qos
            uint8_t state
            uint32_t value
        uint32_t count()
        uint32_t room()
        const Slot& at(uint32_t index)
        Slot* find(uint16_t id)
        void insert(uint16_t id, uint8_t qos, uint8_t state, uint32_t value) except +
        void erase(Slot* slot)

cdef extern from "native/trees.hpp" namespace "txbroker" nogil:
    enum Kind:
        ROUTE
        VERDICT
        INTEREST
        TARGET
        SINGLE

    cppclass Levels:
        uint64_t generation
        size_t count()
        uint32_t reach(const Byte* text, size_t size, cbool is_filter) except +
        void set_number(uint32_t node, Kind kind, uint32_t number)
        void prune(uint32_t node, Kind kind)
        uint32_t find(const Byte* topic, size_t size, Kind kind)

cdef extern from "native/property_list.hpp" namespace "txbroker" nogil:
    const Byte LISTED
    const Byte LISTED_LEVEL
    Byte unlisted(Byte first)
    cbool is_stored_publish(Byte first)
    cbool has_expiry(const Byte* at, size_t size)

    enum Form "txbroker::Form":
        LEVEL_4 "txbroker::Form::LEVEL_4"
        LEVEL_5 "txbroker::Form::LEVEL_5"
        STORED "txbroker::Form::STORED"

cdef extern from "native/packets.hpp" namespace "txbroker" nogil:
    const Byte DUP
    const Byte PUBLISH
    size_t most_levels
    void put_two(char* at, size_t number)
    enum:
        COUNT
    void put_count(char* at, uint64_t count)
    uint32_t count_at(const char* at)

    enum Cut "txbroker::Cut":
        WHOLE "txbroker::Cut::WHOLE"
        PART "txbroker::Cut::PART"
        TOO_LARGE "txbroker::Cut::TOO_LARGE"
        MALFORMED "txbroker::Cut::MALFORMED"

    cppclass Frame:
        size_t body
        size_t stop
        cbool is_padded

    cppclass Entry:
        uint32_t start
        uint32_t topic
        uint32_t topic_end
        uint32_t payload
        uint32_t end
        uint32_t plan
        uint16_t packet_id
        uint8_t qos
        cbool has_list()
        size_t properties()

    cppclass Listed:
        size_t count
        size_t properties
        void add(const Entry& one)

    cppclass Publish:
        uint16_t packet_id
        uint8_t qos

    void keep(vector[Entry]& kept, const vector[Entry]& entries) except +
    Cut cut(const Byte* at, size_t size, size_t max_packet, Frame& frame)
    cppclass Gathered:
        vector[Entry] entries
        string copied
        cbool is_copied
        cbool is_marked
        Listed listed
        const NativeBailiwick* bailiwick
        cbool leaves_text
        cbool leaves_expiring
        void add(const Publish& one, Byte first, const Byte* data, size_t at) except +
        void unmark(const char* data, char* copy)

    cbool plain_publish(
        Byte first, const Byte* packet, const Frame& frame, Publish& one, Gathered& gathered,
        Form form,
    )
    size_t take_plain(
        Gathered& gathered, const Byte* data, size_t at, size_t size, size_t max_packet,
        size_t most, Form form,
    ) except +

    cppclass Reencoded:
        vector[size_t] starts
        size_t measure(const vector[Entry]& entries, cbool has_lists) except +
        vector[Entry] moved(const vector[Entry]& entries) except +
        void put(char* at, const vector[Entry]& entries, const char* data)

cdef extern from "native/plans.hpp" namespace "txbroker" nogil:
    cppclass Sets:
        const uint32_t* members(uint32_t number)
        size_t size(uint32_t number)

    cppclass Plan "txbroker::Plans::Plan":
        uint32_t route
        uint32_t verdict

    cppclass Plans:
        Plans(const Levels& levels) except +
        size_t count()
        const Plan& at(uint32_t number)
        const Sets& sets(Kind kind)
        cbool is_full(size_t more)
        uint32_t number_of(const Byte* topic, size_t size) except +
        size_t look_up(
            vector[Entry]& entries, size_t index, const Byte* data, size_t more
        ) except +
        uint32_t set_for(uint32_t number, Kind kind) except +
        void clear() except +

cdef extern from "native/aliases.hpp" namespace "txbroker" nogil:
    const size_t ALIAS_GROWTH "txbroker::Aliases::GROWTH"

    cppclass Aliases:
        Aliases(uint16_t most) except +
        cbool put(const Byte* packet, size_t size, string& made) except +

cdef extern from "native/window.hpp" namespace "txbroker" nogil:
    const size_t HIGH_MARK
    const size_t QUEUE_BYTES
    const uint32_t QUEUE_HIGH_MARK
    const uint32_t QUEUE_MESSAGES

    enum FlightState "txbroker::FlightState":
        LENT "txbroker::LENT"

    cppclass Content:
        const char* topic
        size_t topic_size
        const char* payload
        size_t payload_size
        const char* properties
        size_t properties_size
        uint8_t qos
        cbool is_retained
        cbool has_list
        cbool is_again
        uint32_t size
        PyObject* owner
        cbool expires()
        size_t packet_size()
        size_t head_size()
        size_t put_head(char* start)
        size_t put(char* start)

    cppclass Waiting:
        int64_t offset
        size_t packet_size
        uint32_t size
        uint32_t part

    cppclass Line:
        uint32_t count()
        uint64_t size()
        Waiting at(size_t place)
        void push(const Content& content, uint32_t part, int64_t offset) except +
        void pop()

    cppclass LentAs:
        uint32_t lender
        int64_t offset

    cppclass Window:
        uint32_t inflight
        uint64_t memory
        uint64_t fills
        Line first
        Line queue
        vector[uint16_t] landed
        vector[LentAs] answered
        uint16_t last_id()
        uint32_t free()
        uint32_t in_flight()
        uint32_t waiting()
        size_t held()
        cbool can_launch(const Output& output, size_t mark)
        cbool queue_has_room(size_t most)
        cbool is_full()
        void launch_new(Output& output, const Content& content) except +
        void launch_new(Output& output, const Content& content, FlightState state) except +
        void lend_as(Output& output, const Content& content, const LentAs& lent_as) except +
        vector[LentAs] unanswered() except +
        size_t pump(Output& output, size_t mark, vector[uint32_t]& part_uses) except +
        bint acknowledge(uint16_t id)
        bint receive(uint16_t id)
        bint has(uint16_t id)
        bint complete(uint16_t id)
        bint refuse(uint16_t id)

cdef extern from "native/growing.hpp" namespace "txbroker":
    cppclass Growing:
        size_t used
        PyObject* take()

cdef extern from "native/property_columns.hpp" namespace "txbroker":
    cppclass OptionalNumbers[Number]:
        Growing valid
        Growing values

    cppclass Texts:
        Growing ends
        Growing data

    cppclass OptionalTexts:
        Growing valid
        Texts texts

    cppclass OptionalPairs:
        Growing valid
        Growing ends

    cppclass PropertyData:
        size_t rows
        OptionalNumbers[int64_t] expiry
        OptionalNumbers[int8_t] payload_format
        OptionalTexts content_type
        OptionalTexts response_topic
        OptionalTexts correlation_data
        OptionalPairs user_properties
        Texts names
        Texts values
        void pad(size_t rows) except +

cdef extern from "native/stored.hpp" namespace "txbroker":
    cbool are_same(const Byte* at, const Byte* other, size_t size)

    enum Problem "txbroker::Problem":
        FINE "txbroker::FINE"
        FULL "txbroker::FULL"

    cppclass Opened:
        size_t names
        size_t places
        size_t packets

    cppclass Packet:
        size_t start
        size_t topic
        size_t topic_end
        size_t properties
        size_t payload
        size_t end
        Byte first

    Problem read_packets(
        const Byte* body, size_t size, size_t count, Opened& opened, vector[Packet]& packets
    ) except +

    cppclass Publisher:
        string client
        string node

    cppclass Publishers:
        vector[Publisher] pairs

    cppclass ColumnData:
        size_t count
        Growing topic_ends
        Growing topics
        Growing payload_ends
        Growing payloads
        Growing qos
        Growing retain
        Growing offset
        Growing created
        Growing publisher
        Publishers publishers
        PropertyData properties
        void set(uint64_t start, uint64_t end, cbool has_payload) except +
        void clear() except +
        Problem add(
            uint64_t first, int64_t time, const Byte* body, size_t size, size_t records,
            const Byte* places, size_t places_size,
        ) except +

cdef extern from "native/records.hpp" namespace "txbroker":
    cppclass Text:
        const Byte* at
        size_t size

    cppclass RecordData:
        uint64_t through
        Publishers publishers
        void set(uint64_t after, uint64_t end, uint64_t most, uint64_t room, Byte least)
        size_t count()
        size_t topics()
        size_t size()
        const string& packets()
        int64_t offset(size_t place)
        uint32_t topic(size_t place)
        size_t length(size_t place)
        int32_t publisher(size_t place)
        Packet packet(size_t place)
        Problem add(
            uint64_t first, const Byte* body, size_t size, size_t count, const Byte* places,
            size_t places_size, cbool& more,
        ) except +
        size_t place_above(uint64_t offset)
        void find(
            const vector[Text]& filters, uint64_t after, size_t most, vector[size_t]& found
        ) except +

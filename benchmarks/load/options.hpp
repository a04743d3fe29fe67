// What the command line says; `--help` prints the texts beside the names in options.cpp.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

enum class Mapping {
    pairs,      // subscriber s takes the publishers p with p % subscribers == s, a filter for each
    all,        // each subscriber takes everything
    wildcards,  // `filters` filters spread over the subscribers; two match each message
    shared,     // a shared subscription: each message goes to exactly one subscriber
};

constexpr int MIXED = 3;  // as a QoS: that of a topic is its number modulo 3

struct Options {
    std::string mode = "flow";
    std::vector<int> publish_ports;
    std::vector<int> subscribe_ports;
    std::vector<int> pids;
    std::vector<std::string> prefixes{"bench"};
    Mapping mapping = Mapping::pairs;
    int publishers = 1;
    int subscribers = 1;
    int topics = 1;
    int filters = 1000;
    int level = 4;
    int publisher_level = -1;
    int properties = 0;
    int expiry = 0;
    int qos = 0;
    int subscribe_qos = -1;
    int window = 100;
    int outstanding = 30000;
    int slow = 0;
    int slow_rate = 100000;
    int churn = 0;
    int connections = 10000;
    int parallel = 40;
    bool durable = false;
    size_t size = 64;
    size_t batch = 65536;
    double fresh = 0.1;
    double rate = 0;
    double seconds = 3;
    double patience = 10;
};

// Ends the process with status 2 and a line on stderr when something is wrong.
Options parse(int count, char** arguments);

// Ends the process with status 1 and one line on stderr: the run does not count.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

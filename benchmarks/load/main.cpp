// A load generator for MQTT brokers on loopback, which checks everything that it receives.
// One process, one thread, one epoll; `--help` tells the options. What it prints is one JSON object;
// a run in which anything is lost, doubled, out of order or damaged ends with status 1.

#include <sys/prctl.h>

#include "flow.hpp"
#include "relay.hpp"
#include "storm.hpp"

int main(int count, char** arguments) {
    Options options = parse(count, arguments);
    prctl(PR_SET_TIMERSLACK, 1);  // sleeps end when they should
    if (options.mode == "flow")
        Flow(options).run();
    else if (options.mode == "connect" || options.mode == "cycle" || options.mode == "idle")
        Storm(options).run();
    else if (options.mode == "relay")
        Relay(options).run();
    else
        fail("no such mode: %s", options.mode.c_str());
}

#include "plan.hpp"

#include <cstdio>

namespace {

std::string numbered(char letter, int number) {
    char text[16];
    std::snprintf(text, sizeof text, "%c%04d", letter, number);
    return text;
}

}  // namespace

Plan::Plan(const Options& options) : options_(options) {
    properties = property_list(options_.publisher_level, options_.properties, options_.expiry);
    make_streams();
    make_filters();
    for (uint32_t stream = 0; stream < streams.size(); ++stream)
        for (int subscriber = 0; subscriber < options_.subscribers; ++subscriber)
            streams[stream].receivers += wants(subscriber, stream);
    if (options_.mapping == Mapping::shared)
        for (auto& stream : streams) stream.receivers = 1;
}

void Plan::make_streams() {
    for (int publisher = 0; publisher < options_.publishers; ++publisher)
        for (int topic = 0; topic < options_.topics; ++topic)
            for (bool fresh : {false, true}) {
                Stream stream;
                stream.topic = prefix_of(publisher) + "/" + numbered('p', publisher) + "/" +
                               numbered('t', topic) + (fresh ? "/00000000" : "/now");
                stream.fresh = fresh;
                stream.publisher = publisher;
                stream.qos = options_.qos == MIXED ? topic % 3 : options_.qos;
                stream.head = publish_head(stream.topic, stream.qos, properties.size() + options_.size);
                streams.push_back(stream);
            }
}

void Plan::make_filters() {
    filters.resize(static_cast<size_t>(options_.subscribers));
    size_t count = filters.size();
    switch (options_.mapping) {
        case Mapping::pairs:
            for (int publisher = 0; publisher < options_.publishers; ++publisher)
                filters[static_cast<size_t>(publisher) % count].push_back(
                    prefix_of(publisher) + "/" + numbered('p', publisher) + "/#");
            break;
        case Mapping::all:
            for (auto& filter : filters)
                for (const auto& prefix : options_.prefixes) filter.push_back(prefix + "/#");
            break;
        case Mapping::shared:
            for (auto& filter : filters)
                for (const auto& prefix : options_.prefixes) filter.push_back("$share/bench/" + prefix + "/#");
            break;
        case Mapping::wildcards:
            for (int topic = 0; topic < options_.topics; ++topic) {
                auto place = static_cast<size_t>(topic);
                filters[place % count].push_back(options_.prefixes[0] + "/+/" + numbered('t', topic) + "/#");
                filters[(place + 1) % count].push_back("+/+/" + numbered('t', topic) + "/+");
            }
    }
}

bool Plan::wants(int subscriber, uint32_t stream) const {
    int topic = static_cast<int>(stream) / 2 % options_.topics;
    switch (options_.mapping) {
        case Mapping::pairs:
            return streams[stream].publisher % options_.subscribers == subscriber;
        case Mapping::all:
        case Mapping::shared:
            return true;
        case Mapping::wildcards:
            return topic % options_.subscribers == subscriber || (topic + 1) % options_.subscribers == subscriber;
    }
    return false;
}

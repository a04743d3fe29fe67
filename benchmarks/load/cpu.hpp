// The CPU time of processes, to the nanosecond.
#pragma once

#include <dirent.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

inline int64_t clock_now(clockid_t clock = CLOCK_MONOTONIC) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Of all threads that are running; a thread that ends takes its time with it.
inline int64_t cpu_of(const std::vector<int>& pids) {
    int64_t sum = 0;
    for (int pid : pids) {
        std::string folder = "/proc/" + std::to_string(pid) + "/task";
        DIR* tasks = opendir(folder.c_str());
        if (tasks == nullptr) continue;
        while (const dirent* task = readdir(tasks)) {
            std::string name = task->d_name;
            std::FILE* file = name[0] == '.' ? nullptr : std::fopen((folder + "/" + name + "/schedstat").c_str(), "r");
            if (file == nullptr) continue;
            long long nanoseconds = 0;
            if (std::fscanf(file, "%lld", &nanoseconds) == 1) sum += nanoseconds;
            std::fclose(file);
        }
        closedir(tasks);
    }
    return sum;
}

// Tells libFuzzer what gcc's -fsanitize-coverage=trace-pc,trace-cmp tells, in place of what clang's
// instrumentation would. Hidden, so that the extension finds these and not those of libasan, which
// do nothing.

#include <Python.h>
#include <sanitizer/lsan_interface.h>

#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t COUNTERS = 1 << 16, PLACES = 1 << 21;

struct Pc {
    uintptr_t at, flags;
};

uint8_t counters[COUNTERS];
Pc pcs[COUNTERS];
uint16_t numbers[PLACES];  // the counter of each place in the code, from the first time on
size_t used = 0;

using Two1 = void (*)(uint8_t, uint8_t);
using Two2 = void (*)(uint16_t, uint16_t);
using Two4 = void (*)(uint32_t, uint32_t);
using Two8 = void (*)(uint64_t, uint64_t);
using Switch = void (*)(uint64_t, void*);

struct Hooks {
    Two1 cmp1, const_cmp1;
    Two2 cmp2, const_cmp2;
    Two4 cmp4, const_cmp4;
    Two8 cmp8, const_cmp8;
    Switch switch_;
} hooks = {};

}  // namespace

extern "C" {

extern const char __ehdr_start __attribute__((visibility("hidden")));  // where this library begins

// Which code ran, as a counter of each place. A call takes 5 bytes, so 4 never hold two of them.
void __sanitizer_cov_trace_pc() {
    size_t offset = static_cast<const char*>(__builtin_return_address(0)) - &__ehdr_start;
    size_t place = offset / 4;
    if (place >= PLACES) return;
    if (!numbers[place] && used + 1 < COUNTERS) {
        numbers[place] = static_cast<uint16_t>(++used);
        pcs[used].at = offset;
    }
    ++counters[numbers[place]];
}

// What was compared with what. These calls are jumps: libFuzzer tells places apart by who called.
#define COMPARED(name, type)                                                     \
    void __sanitizer_cov_trace_##name(type one, type other) {                    \
        if (hooks.name) return hooks.name(one, other);                           \
    }
COMPARED(cmp1, uint8_t)
COMPARED(cmp2, uint16_t)
COMPARED(cmp4, uint32_t)
COMPARED(cmp8, uint64_t)
COMPARED(const_cmp1, uint8_t)
COMPARED(const_cmp2, uint16_t)
COMPARED(const_cmp4, uint32_t)
COMPARED(const_cmp8, uint64_t)
void __sanitizer_cov_trace_cmpf(float, float) {}
void __sanitizer_cov_trace_cmpd(double, double) {}
void __sanitizer_cov_trace_switch(uint64_t value, void* cases) {
    if (hooks.switch_) return hooks.switch_(value, cases);
}

// How many places were seen so far.
__attribute__((visibility("default"))) size_t fuzz_places() { return used; }

// Whether there is memory that nobody knows any more. What Python's frames know counts: it is in
// memory that LeakSanitizer does not know as such.
__attribute__((visibility("default"))) int fuzz_has_leaks() {
    _PyStackChunk* top = PyThreadState_Get()->datastack_chunk;
    for (_PyStackChunk* one = top; one; one = one->previous)
        __lsan_register_root_region(one, one->size);
    int has_leaks = __lsan_do_recoverable_leak_check();
    for (_PyStackChunk* one = top; one; one = one->previous)
        __lsan_unregister_root_region(one, one->size);
    return has_leaks;
}

// From here on libFuzzer is told; `find` gives the address of its function of a name.
__attribute__((visibility("default"))) void fuzz_connect(void* (*find)(const char*)) {
    auto counters_init = reinterpret_cast<void (*)(uint8_t*, uint8_t*)>(
        find("__sanitizer_cov_8bit_counters_init"));
    auto pcs_init = reinterpret_cast<void (*)(const uintptr_t*, const uintptr_t*)>(
        find("__sanitizer_cov_pcs_init"));
    counters_init(counters, counters + COUNTERS);
    pcs_init(&pcs[0].at, &pcs[0].at + 2 * COUNTERS);
#define FOUND(name, type) hooks.name = reinterpret_cast<type>(find("__sanitizer_cov_trace_" #name));
    FOUND(cmp1, Two1)
    FOUND(cmp2, Two2)
    FOUND(cmp4, Two4)
    FOUND(cmp8, Two8)
    FOUND(const_cmp1, Two1)
    FOUND(const_cmp2, Two2)
    FOUND(const_cmp4, Two4)
    FOUND(const_cmp8, Two8)
    hooks.switch_ = reinterpret_cast<Switch>(find("__sanitizer_cov_trace_switch"));
}

}  // extern "C"

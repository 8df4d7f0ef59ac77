// sanitizers.h - tells whether this binary has AddressSanitizer or ThreadSanitizer: their functions
// are declared weak, so that they are null without the sanitizer.
#pragma once
#include <cstddef>

extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* p, size_t bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* p, size_t bytes);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** save, const void* bottom, size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* saved, const void** bottom_before, size_t* bytes_before);

[[gnu::weak]] void __tsan_init();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);    // flags 1: no sync
[[gnu::weak]] void __tsan_acquire(void* at);
[[gnu::weak]] void __tsan_release(void* at);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char*, int);
[[gnu::weak]] void AnnotateBenignRaceSized(const char*, int, const volatile void*, size_t, const char*);
}
inline const bool ASAN = __asan_init != nullptr, TSAN = __tsan_init != nullptr;

// Which kernels this processor can run.
#include <cstring>
#include <initializer_list>

#include "kernels.h"

namespace outrider {

const Kernels* find_kernels(const char* name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni");
    if (avx512 && std::strcmp(name, kAvx512Kernels.name) == 0) return &kAvx512Kernels;
    if (avx2 && std::strcmp(name, kAvx2Kernels.name) == 0) return &kAvx2Kernels;
#endif
    return std::strcmp(name, kPlainKernels.name) == 0 ? &kPlainKernels : nullptr;
}

const Kernels& best_kernels() {
    for (const char* name : {"avx512vnni", "avx2"})
        if (const Kernels* kernels = find_kernels(name)) return *kernels;
    return kPlainKernels;
}

}  // namespace outrider

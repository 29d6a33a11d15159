/* Maps of the host, by effective addresses of 64 bits; those of 32 bits are in <ea.h>. */
#ifndef SIDECORE_SYS_MMAN_H
#define SIDECORE_SYS_MMAN_H
#include_next <sys/mman.h>

#define MAP_FAILED_EADDR (~0ULL)
#define MAP_FAILED_EA ((__ea void *)-1)
#ifndef MREMAP_MAYMOVE
#define MREMAP_MAYMOVE 1
#endif

#ifdef __cplusplus
extern "C" {
#endif
extern unsigned long long mmap_eaddr(unsigned long long, size_t, int, int, int, off_t);
extern unsigned long long mremap_eaddr(unsigned long long, size_t, size_t, int);
extern unsigned long long msync_eaddr(unsigned long long, size_t, int);
extern unsigned long long munmap_eaddr(unsigned long long, size_t);
#ifdef __cplusplus
}
#endif
#endif

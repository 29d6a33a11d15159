/* Effective addresses. A pointer with __ea has 32 bits here, and its memory is read and written as any other;
 * addresses beyond are numbers. Memory that is allocated or mapped here lies where such pointers reach.
 */
#ifndef _EA_H_
#define _EA_H_

#include <stddef.h>
#include <string.h>
#include <sys/types.h>

typedef size_t size_ea_t;
typedef long ssize_ea_t;

/* The C library's functions on such memory. */
#define memchr_ea memchr
#define memcmp_ea memcmp
#define memcpy_ea memcpy
#define memmove_ea memmove
#define memset_ea memset
#define strcat_ea strcat
#define strchr_ea strchr
#define strcmp_ea strcmp
#define strcpy_ea strcpy
#define strcspn_ea strcspn
#define strlen_ea strlen
#define strncat_ea strncat
#define strncmp_ea strncmp
#define strncpy_ea strncpy
#define strpbrk_ea strpbrk
#define strrchr_ea strrchr
#define strspn_ea strspn
#define strstr_ea strstr

#ifdef __cplusplus
extern "C" {
#endif
/* The host's allocator: what is allocated here the host may free, unless it is one of 64 bits (-m64). */
extern __ea void *malloc_ea(size_ea_t);
extern __ea void *calloc_ea(size_ea_t, size_ea_t);
extern __ea void *realloc_ea(__ea void *, size_ea_t);
extern void free_ea(__ea void *);
extern int posix_memalign_ea(__ea void **, size_ea_t, size_ea_t);

/* Files into such memory and out of it. */
extern ssize_ea_t read_ea(int, __ea void *, size_ea_t);
extern ssize_ea_t pread_ea(int, __ea void *, size_ea_t, off_t);
extern ssize_ea_t write_ea(int, __ea const void *, size_ea_t);
extern ssize_ea_t pwrite_ea(int, __ea const void *, size_ea_t, off_t);

/* Maps of the host; <sys/mman.h> has those by numbers of 64 bits. */
extern __ea void *mmap_ea(__ea void *, size_ea_t, int, int, int, off_t);
extern __ea void *mremap_ea(__ea void *, size_ea_t, size_ea_t, unsigned long);
extern int msync_ea(__ea void *, size_ea_t, int);
extern int munmap_ea(__ea void *, size_ea_t);
#ifdef __cplusplus
}
#endif

#endif

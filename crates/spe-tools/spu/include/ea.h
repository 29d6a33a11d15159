/* Effective addresses. A pointer with __ea has 32 bits here, and its memory is read and written as any other;
 * addresses beyond are numbers. Memory of the host is the host program's to allocate.
 */
#ifndef _EA_H_
#define _EA_H_

#include <stddef.h>
#include <string.h>

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
#define __EA_NONE(name) __attribute__((error(name ": an SPU program cannot allocate the host's memory here; " \
	"allocate it in the host program and hand its address on")))
extern void *malloc_ea(size_ea_t) __EA_NONE("malloc_ea");
extern void *calloc_ea(size_ea_t, size_ea_t) __EA_NONE("calloc_ea");
extern void *realloc_ea(void *, size_ea_t) __EA_NONE("realloc_ea");
extern void free_ea(void *) __EA_NONE("free_ea");
extern int posix_memalign_ea(void **, size_ea_t, size_ea_t) __EA_NONE("posix_memalign_ea");
#ifdef __cplusplus
}
#endif

#endif

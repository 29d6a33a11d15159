/* Functions between code whose pointers and longs have 4 bytes and the C library of this machine. */
#ifndef SIDECORE_NARROW_H
#define SIDECORE_NARROW_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A pointer in the program's memory. */
typedef uint32_t word;

static inline void *wide(word pointer) { return (void *)(uintptr_t)pointer; }
static inline word narrowed(const void *pointer) { return (word)(uintptr_t)pointer; }

/* The text itself where it lies below 4 GiB, else a copy that does; one copy for each text. */
char *__narrow_text(const char *text);
/* Pointers of this machine from an array of the program's that ends with 0; to be freed. */
char **__narrow_widened(const word *array);

/* Programs have functions of their own by these names. */
#pragma weak __narrow_err
#pragma weak __narrow_errx
#pragma weak __narrow_warn
#pragma weak __narrow_warnx
#pragma weak __narrow_getline
#pragma weak __narrow_getdelim
#pragma weak __narrow_dirname
#pragma weak __narrow_strsep
#pragma weak __narrow_strsignal
#pragma weak __narrow_asprintf
#pragma weak __narrow_vasprintf
#pragma weak __narrow_dprintf
#pragma weak __narrow_readv
#pragma weak __narrow_writev

#endif

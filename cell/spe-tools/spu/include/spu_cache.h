/* The cache behind __ea pointers. Here memory of the host is read and written in place, so that nothing is kept:
 * what is fetched is the memory itself.
 */
#ifndef _SPU_CACHE_H
#define _SPU_CACHE_H

#define __cache_fetch(ea) ((void *)(unsigned int)(ea))
#define __cache_fetch_dirty(ea, bytes) ((void)(bytes), (void *)(unsigned int)(ea))
#define __cache_evict(ea) ((void)(ea))
#define __cache_flush() __asm__ volatile("" : : : "memory")
#define __cache_touch(ea) __builtin_prefetch((const void *)(unsigned int)(ea))
#define cache_fetch(ea) __cache_fetch(ea)
#define cache_fetch_dirty(ea, bytes) __cache_fetch_dirty(ea, bytes)
#define cache_evict(ea) __cache_evict(ea)
#define cache_flush() __cache_flush()
#define cache_touch(ea) __cache_touch(ea)

#endif

/* Calls of the host that the SPU's intrinsics are. */
#ifndef _SPU_INTERNALS_H_
#define _SPU_INTERNALS_H_
#include <sidecore_begin.h>

#include <sidecore_vector_parts.h>

#ifdef __cplusplus
extern "C" {
#endif
extern unsigned long long __sidecore_call(unsigned int, unsigned long long, unsigned long long,
	unsigned long long, unsigned long long) __attribute__((visibility("hidden")));
extern void __sidecore_stop(unsigned int) __attribute__((visibility("hidden")));
extern void __sidecore_halt(void) __attribute__((visibility("hidden")));
extern void __sidecore_ienable(void);
extern void __sidecore_idisable(void);
/* The register of floats' rounding and exceptions as programs wrote it. */
extern vec_uint4 __sidecore_fpscr;
/* The driver's step looks for this name. */
typedef int __sidecore_spu_macros;
#ifdef __cplusplus
}
#endif

__SPU_INLINE void __spu_mfc(unsigned int ls, unsigned long long ea, unsigned int size, unsigned int tag,
	unsigned int command)
{
	__sidecore_call(7, ls, ea, size | (unsigned long long)tag << 32, command);
}

#include <sidecore_end.h>
#endif

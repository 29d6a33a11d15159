/* The SPU's instructions on the host, so that source of the SPU compiles for it: those of registers and
 * memory. Channels, stops and the MFC are the SPU's alone.
 */
#ifndef _SI2VMX_H_
#define _SI2VMX_H_

#include <stdlib.h>
#include <vec_types.h>
#include <sidecore_vector_parts.h>
#include <spu_si.h>

/* The driver's step looks for this name. */
typedef int __sidecore_spu_macros;

/* A halt ends the process. */
static __inline__ __attribute__((unused)) void __sidecore_halt(void) { abort(); }

#endif

/* AltiVec's operations on the SPU, so that source of the PPE compiles for it. They are those of the host's
 * altivec.h, with its types of truth values and pixels.
 */
#ifndef _VMX2SPU_H_
#define _VMX2SPU_H_

#include <spu_intrinsics.h>
#include <sidecore_altivec.h>

__SIDECORE_ALTIVEC_NAMES

#endif

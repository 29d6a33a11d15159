/* Names of the vector types; on the host with the SPU's quadword, as the toolchains had it. */
#ifndef _VEC_TYPES_H_
#define _VEC_TYPES_H_

#include <sidecore_vector_names.h>
#ifndef __SPU__
typedef __spe_vec_char16 qword;
#endif

#endif

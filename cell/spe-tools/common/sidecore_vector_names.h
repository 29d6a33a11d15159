/* Names of the vector types, one word each, as the language extensions specify them. */
#ifndef SIDECORE_VECTOR_NAMES_H
#define SIDECORE_VECTOR_NAMES_H

typedef __spe_vec_uchar16 vec_uchar16;
typedef __spe_vec_char16 vec_char16;
typedef __spe_vec_ushort8 vec_ushort8;
typedef __spe_vec_short8 vec_short8;
typedef __spe_vec_uint4 vec_uint4;
typedef __spe_vec_int4 vec_int4;
typedef __spe_vec_ullong2 vec_ullong2;
typedef __spe_vec_llong2 vec_llong2;
typedef __spe_vec_float4 vec_float4;
typedef __spe_vec_double2 vec_double2;

/* AltiVec's own; on the SPU vmx2spu.h has them. */
#define __SIDECORE_ALTIVEC_NAMES \
	typedef __spe_vec_uchar16 vec_bchar16; \
	typedef __spe_vec_ushort8 vec_bshort8; \
	typedef __spe_vec_uint4 vec_bint4; \
	typedef __spe_vec_ushort8 vec_pixel8;
#ifndef __SPU__
__SIDECORE_ALTIVEC_NAMES
#endif

#endif

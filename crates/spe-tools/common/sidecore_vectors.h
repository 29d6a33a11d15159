/* The vector types that the drivers put in the place of `vector float` and its like. */
#ifndef SIDECORE_VECTORS_H
#define SIDECORE_VECTORS_H
#ifndef __ASSEMBLER__

typedef signed char __spe_vec_char16 __attribute__((vector_size(16)));
typedef unsigned char __spe_vec_uchar16 __attribute__((vector_size(16)));
typedef short __spe_vec_short8 __attribute__((vector_size(16)));
typedef unsigned short __spe_vec_ushort8 __attribute__((vector_size(16)));
typedef int __spe_vec_int4 __attribute__((vector_size(16)));
typedef unsigned int __spe_vec_uint4 __attribute__((vector_size(16)));
typedef long long __spe_vec_llong2 __attribute__((vector_size(16)));
typedef unsigned long long __spe_vec_ullong2 __attribute__((vector_size(16)));
typedef float __spe_vec_float4 __attribute__((vector_size(16)));
typedef double __spe_vec_double2 __attribute__((vector_size(16)));

/* Effective addresses have 64 bits; a pointer that is declared with __ea has 32 here. */
#if defined(__SPU__) && !defined(__cplusplus)
#define __ea
#endif

#endif
#endif

/* Random numbers as the SDK's Monte Carlo library has them: generators hw (the system's), ks (Kirkpatrick and
 * Stoll's, by two of the last 250 words) and mt (the Mersenne Twister), and transforms to the normal
 * distribution. Counts are numbers of vectors. Sequences are not the SDK's; a generator that was not
 * initialized gives zeros. There are no Sobol sequences and no SFMT.
 */
#ifndef _MC_RAND_H_
#define _MC_RAND_H_

#include <sidecore_vector_names.h>
/* Programs count on it. */
#include <spu_intrinsics.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Negative where the system has no random numbers. */
extern int mc_rand_hw_init(void);
extern void mc_rand_ks_init(unsigned int seed);
extern void mc_rand_mt_init(unsigned int seed);

/* 0 to 1 without both, -1 to 1 without both; d2e fill the last bits of doubles, as d2 do here. */
#define __MC_RAND(generator) \
	extern vec_uint4 mc_rand_##generator##_u4(void); \
	extern void mc_rand_##generator##_array_u4(unsigned int count, vec_uint4 *array); \
	extern vec_float4 mc_rand_##generator##_0_to_1_f4(void); \
	extern vec_float4 mc_rand_##generator##_minus1_to_1_f4(void); \
	extern vec_double2 mc_rand_##generator##_0_to_1_d2(void); \
	extern vec_double2 mc_rand_##generator##_minus1_to_1_d2(void); \
	extern vec_double2 mc_rand_##generator##_0_to_1_d2e(void); \
	extern vec_double2 mc_rand_##generator##_minus1_to_1_d2e(void); \
	extern void mc_rand_##generator##_0_to_1_array_f4(unsigned int count, vec_float4 *array); \
	extern void mc_rand_##generator##_minus1_to_1_array_f4(unsigned int count, vec_float4 *array); \
	extern void mc_rand_##generator##_0_to_1_array_d2(unsigned int count, vec_double2 *array); \
	extern void mc_rand_##generator##_minus1_to_1_array_d2(unsigned int count, vec_double2 *array); \
	extern void mc_rand_##generator##_0_to_1_array_d2e(vec_double2 *array, unsigned int count); \
	extern void mc_rand_##generator##_minus1_to_1_array_d2e(vec_double2 *array, unsigned int count);
__MC_RAND(hw)
__MC_RAND(ks)
__MC_RAND(mt)
#undef __MC_RAND

/* Moro's inversion. */
extern vec_float4 mc_transform_mi_f4(vec_float4 source);
extern vec_double2 mc_transform_mi_d2(vec_double2 source);
extern void mc_transform_mi_array_f4(unsigned int count, vec_float4 *source, vec_float4 *dest);
extern void mc_transform_mi_array_d2(unsigned int count, vec_double2 *source, vec_double2 *dest);
#define mc_transform_icdf_f4 mc_transform_mi_f4
#define mc_transform_icdf_d2 mc_transform_mi_d2
#define mc_transform_icdf_array_f4 mc_transform_mi_array_f4
#define mc_transform_icdf_array_d2 mc_transform_mi_array_d2
/* Box and Muller's: the sine alone (half as many vectors), or sine and cosine. */
extern void mc_transform_bm_array_f4(unsigned int count, vec_float4 *source, vec_float4 *dest);
extern void mc_transform_bm_array_d2(unsigned int count, vec_double2 *source, vec_double2 *dest);
extern void mc_transform_bm2_array_f4(unsigned int count, vec_float4 *source, vec_float4 *dest);
extern void mc_transform_bm2_array_d2(unsigned int count, vec_double2 *source, vec_double2 *dest);
/* The polar method: pairs outside of the circle are drawn anew, or left out (the vectors that remain). */
extern vec_float4 mc_transform_po_f4(vec_float4 (*generator)(void));
extern vec_double2 mc_transform_po_d2(vec_double2 (*generator)(void));
extern void mc_transform_po_array_f4(unsigned int count, vec_float4 *source, vec_float4 *dest,
	vec_float4 (*generator)(void));
extern void mc_transform_po_array_d2(unsigned int count, vec_double2 *source, vec_double2 *dest,
	vec_double2 (*generator)(void));
extern unsigned int mc_transform_reject_po_array_f4(unsigned int count, vec_float4 *source, vec_float4 *dest);
extern unsigned int mc_transform_reject_po_array_d2(unsigned int count, vec_double2 *source,
	vec_double2 *dest);

#ifdef __cplusplus
}
#endif
#endif

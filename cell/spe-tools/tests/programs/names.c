/* AltiVec's names on the SPU (vmx2spu.h), or the SPU's on the host (spu2vmx.h). */
#include <stdio.h>
#ifdef __SPU__
#include <vmx2spu.h>
#else
#include <spu2vmx.h>
#include <altivec.h>
#endif
#include <vec_types.h>

int main(void)
{
	vector float a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
	vec_float4 sum = vec_madd(a, b, (vector float)vec_splat_u32(0)), same = spu_madd(a, b, spu_splats(0.0f));
	vec_uint4 words = {1, 2, 3, 0x80000000};
	vec_uchar16 pattern = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
	vec_bint4 above = vec_cmpgt(b, a);
	qword q = si_from_uint(77);
	int bad = 0;
	bad += !vec_all_eq(sum, same) || sum[3] != 32;
	bad += !vec_all_eq(vec_mergeh(words, words), spu_shuffle(words, words, pattern));
	bad += spu_extract(spu_gather((vec_uint4)above), 0) != 15;
	bad += vec_vadduwm(words, words)[1] != 4 || vec_step(vector unsigned char) != 16;
	bad += si_to_uint(si_ai(q, 3)) != 80;
	bad += vec_any_lt(b, a) || spu_extract(spu_cntlz(words), 2) != 30;
	bad += spu_extract(spu_rlmaska(words, -31), 3) != 0xffffffff;
	return bad;
}

/* AltiVec's operations beside plain C; the exit status is the number of checks that fail. */
#include <altivec.h>
#include <libmisc.h>
#include <ppu_intrinsics.h>
#include <simdmath.h>
#include <stdio.h>

static int bad;
static void check(const char *name, int holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

static volatile float two = 2, three = 3;
static volatile union { float value; unsigned bits; } divided;
static unsigned quotient(void)
{
	divided.value = two / three;
	return divided.bits;
}

static unsigned bits_of(double value)
{
	union { double value; unsigned long long bits; } in;
	in.value = value;
	return (unsigned)in.bits;
}

int main(void)
{
	float a[8] __attribute__((aligned(16))) = { 1, 2, 3, 4, 5, 6, 7, 8 };
	float stored[4] __attribute__((aligned(16)));
	vector float v = vec_ld(0, a), w = vec_ld(16, a), r;
	vector unsigned char p = { 16, 17, 18, 19, 0, 1, 2, 3, 20, 21, 22, 23, 4, 5, 6, 7 };
	vector signed short s = vec_splat_s16(-7);
	vector unsigned char c = vec_packs((vector unsigned short)(300), (vector unsigned short)(3));
	vector bool int m = vec_cmpgt(w, v);
	unsigned long long before = __mftb();

	vec_st(vec_madd(v, w, (vector float){ 1, 1, 1, 1 }), 0, stored);
	check("madd", stored[0] == 6 && stored[3] == 33);
	r = vec_perm(v, w, p);
	check("perm", r[0] == 5 && r[1] == 1 && r[2] == 6 && r[3] == 2);
	check("adds", vec_extract(vec_adds(s, vec_splats((short)-32766)), 0) == -32768);
	r = vec_mergeh(v, w);
	check("mergeh", r[0] == 1 && r[1] == 5 && r[2] == 2 && r[3] == 6);
	r = vec_mergel(v, w);
	check("mergel", r[0] == 3 && r[1] == 7 && r[2] == 4 && r[3] == 8);
	r = vec_sld(v, w, 4);
	check("sld", r[0] == 2 && r[3] == 5);
	check("all", vec_all_gt(w, v) && !vec_any_eq(v, w) && vec_any_ne(v, w));
	check("packs", c[0] == 255 && c[8] == 3);
	check("sel", vec_extract(vec_sel(v, w, m), 2) == 7);
	check("abs", vec_extract(vec_abs(vec_sub(v, w)), 1) == 4);
	check("ld", vec_extract(vec_ld(16, (vector float *)a), 3) == 8);
	/* Data that is not aligned, as programs of the time loaded it. */
	r = vec_perm(vec_ld(0, a + 1), vec_ld(16, a + 1), vec_lvsl(0, a + 1));
	check("lvsl", r[0] == 2 && r[3] == 5);
	check("sums", vec_extract(vec_sums(vec_splat_s32(3), vec_splat_s32(1)), 3) == 13);
	check("mule", vec_extract(vec_mule((vector signed short){ 1, 2, 3 }, vec_splat_s16(2)), 1) == 6);
	check("sum4s", vec_extract(vec_sum4s(((vector unsigned char){ 1, 2, 3, 4 }),
					     (vector unsigned int){ 5, 6, 7, 8 }), 0) == 15);
	check("sl", vec_extract(vec_sl((vector unsigned int){ 1, 2, 3, 4 }, vec_splat_u32(3)), 3) == 32);
	check("sra", vec_extract(vec_sra(vec_splat_s32(-16), vec_splat_u32(2)), 0) == -4);
	check("cts", vec_extract(vec_cts(vec_splats(2.75f), 2), 0) == 11);
	/* The Cell's unaligned loads and stores, alone and together. */
	r = vec_or(vec_lvlx(0, a + 1), vec_lvrx(16, a + 1));
	check("lvlx, lvrx", r[0] == 2 && r[3] == 5);
	check("lvlx", vec_extract(vec_lvlx(0, a + 1), 2) == 4 && vec_extract(vec_lvlx(0, a + 1), 3) == 0);
	check("lvrx", vec_extract(vec_lvrx(16, a + 1), 3) == 5 && vec_extract(vec_lvrx(16, a + 1), 2) == 0);
	check("lvrx of a whole quadword", vec_all_eq(vec_lvrx(16, a), vec_splats(0.0f)));
	vec_stvlx(v, 0, a + 3);
	vec_stvrx(v, 16, a + 3);
	check("stvlx, stvrx", a[2] == 3 && a[3] == 1 && a[4] == 2 && a[6] == 4 && a[7] == 8);
	check("msums", vec_extract(vec_msums(vec_splats((short)-32768), vec_splats((short)-32768),
					     vec_splats(5)), 0) == 2147483647);
	check("msums of unsigned", vec_extract(vec_msums(vec_splats((unsigned short)65535),
							 vec_splats((unsigned short)2),
							 vec_splats(7u)), 1) == 262147);
	check("packpx", vec_extract(vec_packpx(vec_splats(0x01ff8008u), vec_splats(0u)), 0) == 0xfe01);
	check("simdmath", vec_extract(sqrtf4(vec_splats(9.0f)), 1) == 3);
	check("misc", ((unsigned long)_malloc_align(100, 7) & 127) == 0);
	/* Truth values take the other operand's type, in either place. */
	r = vec_and(m, w);
	check("and of truth", r[0] == 5 && r[3] == 8);
	r = vec_andc(w, m);
	check("andc of truth", r[0] == 0);
	check("splats of -0", vec_extract((vector unsigned)vec_splats(-0.0f), 1) == 0x80000000);
	check("truth and signs", vec_all_le(vec_cmpeq(s, s), vec_splat_s16(0)) &&
				 vec_all_ge(vec_splat_s16(0), vec_cmpeq(s, s)));
	__mtfsfi(7, 1);
	check("rounding to zero", quotient() == 0x3f2aaaaa);
	__mtfsfi(7, 0);
	check("rounding to the nearest", quotient() == 0x3f2aaaab);
	__mtfsb1(3);
	check("states of floats", (bits_of(__mffs()) & 0xf0000000) == 0x10000000);
	__mtfsb0(3);
	asm volatile("sync" : : : "memory");
	__lwsync();
	check("time", __mftb() >= before);
	check("bits", __cntlzw(1) == 31 && __rlwinm(0x12345678, 8, 24, 31) == 0x12);
	return bad;
}

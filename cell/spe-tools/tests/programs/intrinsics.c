/* Intrinsics beside the SPU's definition: registers of sixteen bytes, the most significant first. Each
 * check prints its name where it does not hold; the exit status is their number. */
#include <spu_intrinsics.h>
#include <spu_mfcio.h>
#include <stdio.h>
#include <string.h>

static int bad;
static volatile double zero;

static void check(const char *name, int holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

/* A register's bytes, from a vector with elements of `size` bytes, and back. */
static void bytes_of(const void *vector, int size, unsigned char *bytes)
{
	int k;
	for (k = 0; k < 16; k++)
		bytes[k] = ((const unsigned char *)vector)[k ^ (size - 1)];
}

static unsigned int seed = 12345;
static unsigned int next(void)
{
	return seed = seed * 1664525 + 1013904223;
}

static int same(vec_uchar16 got, int size, const unsigned char *wanted)
{
	unsigned char bytes[16];
	bytes_of(&got, size, bytes);
	return !memcmp(bytes, wanted, 16);
}

#define QUAD(T, size)                                                                              \
	do {                                                                                       \
		T a, b;                                                                            \
		vec_uchar16 p;                                                                     \
		unsigned char x[32], w[16];                                                        \
		int n = (int)(next() >> 8 & 63) - 31, k;                                           \
		for (k = 0; k < 4; k++) {                                                          \
			((unsigned int *)&a)[k] = next();                                          \
			((unsigned int *)&b)[k] = next();                                          \
			((unsigned int *)&p)[k] = next();                                          \
		}                                                                                  \
		bytes_of(&a, size, x);                                                             \
		bytes_of(&b, size, x + 16);                                                        \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = p[k] < 0x80 ? x[p[k] & 31] : p[k] < 0xc0 ? 0 : p[k] < 0xe0 ? 0xff : 0x80; \
		check("shuffle " #T, same((vec_uchar16)spu_shuffle(a, b, p), size, w));            \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = x[(k + n) & 15];                                                    \
		check("rlqwbyte " #T, same((vec_uchar16)spu_rlqwbyte(a, n), size, w));             \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = k + (n & 31) < 16 ? x[k + (n & 31)] : 0;                            \
		check("slqwbyte " #T, same((vec_uchar16)spu_slqwbyte(a, n), size, w));             \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = k - (-n & 31) >= 0 ? x[k - (-n & 31)] : 0;                          \
		check("rlmaskqwbyte " #T, same((vec_uchar16)spu_rlmaskqwbyte(a, n), size, w));     \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = x[k] << (n & 7) | (k < 15 ? x[k + 1] : 0) >> (8 - (n & 7));         \
		check("slqw " #T, same((vec_uchar16)spu_slqw(a, n), size, w));                     \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = x[k] << (n & 7) | x[(k + 1) & 15] >> (8 - (n & 7));                 \
		check("rlqw " #T, same((vec_uchar16)spu_rlqw(a, n), size, w));                     \
		for (k = 0; k < 16; k++)                                                           \
			w[k] = x[k] >> (-n & 7) | (k > 0 ? x[k - 1] << (8 - (-n & 7)) : 0);        \
		check("rlmaskqw " #T, same((vec_uchar16)spu_rlmaskqw(a, n), size, w));             \
	} while (0)

static void words(void)
{
	vec_uint4 a = {next(), next(), next(), next()}, b = {next(), next(), next(), next()};
	vec_int4 s = (vec_int4)a;
	int n = next() >> 8 & 127, k;
	for (k = 0; k < 4; k++) {
		unsigned int left = (n & 63) < 32 ? a[k] << (n & 63) : 0;
		unsigned int right = (-n & 63) < 32 ? a[k] >> (-n & 63) : 0;
		int arithmetic = s[k] >> ((-n & 63) < 32 ? (-n & 63) : 31);
		unsigned int high = ((b[k] & 1) + a[k] + (unsigned long long)b[k]) >> 32;
		check("sl", spu_extract(spu_sl(a, n), k) == left);
		check("rlmask", spu_extract(spu_rlmask(a, n), k) == right);
		check("rlmaska", spu_extract(spu_rlmaska(s, n), k) == arithmetic);
		check("rl", spu_extract(spu_rl(a, n), k) == (a[k] << (n & 31) | a[k] >> (-n & 31)));
		check("genc", spu_extract(spu_genc(a, b), k) == ((unsigned long long)a[k] + b[k]) >> 32);
		check("gencx", spu_extract(spu_gencx(a, b, b), k) == high);
		check("genb", spu_extract(spu_genb(a, b), k) == (a[k] >= b[k]));
		check("subx", spu_extract(spu_subx(a, b, b), k) == a[k] - b[k] - 1 + (b[k] & 1));
		check("mulo", spu_extract(spu_mulo((vec_short8)a, (vec_short8)b), k)
		      == ((vec_short8)a)[2 * k + 1] * ((vec_short8)b)[2 * k + 1]);
		check("mule", spu_extract(spu_mule((vec_ushort8)a, (vec_ushort8)b), k)
		      == (unsigned int)((vec_ushort8)a)[2 * k] * ((vec_ushort8)b)[2 * k]);
		check("cmpgt", spu_extract(spu_cmpgt(a, b), k) == (a[k] > b[k] ? ~0u : 0));
		check("cmpgt signed", spu_extract(spu_cmpgt(s, 0), k) == (s[k] > 0 ? ~0u : 0));
		check("cntlz", spu_extract(spu_cntlz(a), k) == (unsigned int)__builtin_clz(a[k] | !a[k]));
		check("maskw", spu_extract(spu_maskw(n), k) == (n >> (3 - k) & 1 ? ~0u : 0));
		check("sel", spu_extract(spu_sel(a, b, spu_maskw(n)), k) == (n >> (3 - k) & 1 ? b[k] : a[k]));
		check("add scalar", spu_extract(spu_add(a, 7), k) == a[k] + 7);
	}
	check("gather", spu_extract(spu_gather(a), 0)
	      == ((a[0] & 1) << 3 | (a[1] & 1) << 2 | (a[2] & 1) << 1 | (a[3] & 1)));
	check("orx", spu_extract(spu_orx(a), 0) == (a[0] | a[1] | a[2] | a[3]));
	check("si", si_to_int(si_sfi(si_from_int(n), 5)) == 5 - n);
}

static int vector = 3;

int main(void)
{
	int round;
	struct { int vector; } named = { 4 };
	vector float list = (vector float)(1.0f, 2.0f, 3.0f, 4.0f);
	vector unsigned char all = (vector unsigned char)(7);
	for (round = 0; round < 100; round++) {
		QUAD(vec_uchar16, 1);
		QUAD(vec_ushort8, 2);
		QUAD(vec_uint4, 4);
		QUAD(vec_float4, 4);
		QUAD(vec_ullong2, 8);
		words();
	}
	check("braces", spu_extract(spu_add(list, (vector float){1, 1, 1, 1}), 3) == 5.0f);
	check("lists", all[15] == 7 && vector + named.vector == 7);
	check("madd", spu_extract(spu_madd(list, list, spu_splats(1.0f)), 2) == 10.0f);
	/* A zero's sign, as masks of signs need it. */
	check("splats of -0", spu_extract((vector unsigned int)spu_splats(-0.0f), 3) == 0x80000000
	      && spu_extract((vector unsigned long long)spu_splats(-zero), 1) == 1ull << 63
	      && spu_extract(spu_xor(spu_splats(2.0f), (vector float)(-0.0f)), 1) == -2.0f
	      && spu_extract(spu_andc(spu_splats(-2.0f), spu_splats(-0.0f)), 1) == 2.0f);
	check("convert", spu_extract(spu_convts(spu_splats(-2.75f), 2), 0) == -11
	      && spu_extract(spu_convts(spu_splats(3e9f), 0), 0) == 0x7fffffff
	      && spu_extract(spu_convtu(spu_splats(3e9f), 0), 0) == 3000000000u
	      && spu_extract(spu_convtu(spu_splats(-1.0f), 0), 0) == 0
	      && spu_extract(spu_convtf(spu_splats(5u), 1), 0) == 2.5f);
	check("extend", spu_extract(spu_extend((vec_short8){0, -1, 0, 2}), 1) == 2
	      && spu_extract(spu_extend(list), 1) == 3.0);
	return bad;
}

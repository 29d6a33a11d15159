/* The generators and transforms of mc_rand.h. */
#include <fcntl.h>
#include <math.h>
#include <mc_rand.h>
#include <unistd.h>

/* A generator's words, and the place of the next one. */
enum { KS_WORDS = 250, KS_NEAR = 103, MT_WORDS = 624, MT_MIDDLE = 397, HW_WORDS = 64 };
static unsigned ks[KS_WORDS], ks_next, mt[MT_WORDS], mt_next, hw[HW_WORDS], hw_next;
static int ks_ready, mt_ready, hw_file = -1;

/* Words that have little in common, from a number. */
static void spread(unsigned seed, unsigned *words, int count)
{
	int i;
	words[0] = seed;
	for (i = 1; i < count; i++)
		words[i] = 1812433253u * (words[i - 1] ^ words[i - 1] >> 30) + i;
}

int mc_rand_hw_init(void)
{
	if (hw_file < 0)
		hw_file = open("/dev/urandom", O_RDONLY);
	hw_next = HW_WORDS;
	return hw_file < 0 ? -1 : 0;
}

void mc_rand_ks_init(unsigned seed)
{
	int i;
	spread(seed, ks, KS_WORDS);
	/* Words that are linearly independent: a bit of each of 32 is the highest one that is set. */
	for (i = 0; i < 32; i++) {
		unsigned bit = 0x80000000u >> i;
		ks[7 * i + 3] = (ks[7 * i + 3] & (bit - 1)) | bit;
	}
	ks_next = 0;
	ks_ready = 1;
}

void mc_rand_mt_init(unsigned seed)
{
	spread(seed, mt, MT_WORDS);
	mt_next = MT_WORDS;
	mt_ready = 1;
}

static unsigned hw_word(void)
{
	if (hw_file < 0)
		return 0;
	if (hw_next >= HW_WORDS) {
		if (read(hw_file, hw, sizeof hw) != sizeof hw)
			return 0;
		hw_next = 0;
	}
	return hw[hw_next++];
}

static unsigned ks_word(void)
{
	unsigned word;
	if (!ks_ready)
		return 0;
	word = ks[ks_next] ^ ks[(ks_next + KS_WORDS - KS_NEAR) % KS_WORDS];
	ks[ks_next] = word;
	ks_next = (ks_next + 1) % KS_WORDS;
	return word;
}

static unsigned mt_word(void)
{
	unsigned word;
	int i;
	if (!mt_ready)
		return 0;
	if (mt_next >= MT_WORDS) {
		for (i = 0; i < MT_WORDS; i++) {
			word = (mt[i] & 0x80000000u) | (mt[(i + 1) % MT_WORDS] & 0x7fffffffu);
			mt[i] = mt[(i + MT_MIDDLE) % MT_WORDS] ^ word >> 1 ^ (word & 1 ? 0x9908b0dfu : 0);
		}
		mt_next = 0;
	}
	word = mt[mt_next++];
	word ^= word >> 11;
	word ^= word << 7 & 0x9d2c5680u;
	word ^= word << 15 & 0xefc60000u;
	return word ^ word >> 18;
}

/* Neither 0 nor 1: the middle of one of 2^23 or 2^52 parts. */
static vec_float4 single(vec_uint4 words, int ready)
{
	vec_float4 all = { 0, 0, 0, 0 };
	int i;
	for (i = 0; ready && i < 4; i++)
		all[i] = ((float)(words[i] >> 9) + 0.5f) * 0x1p-23f;
	return all;
}
static vec_double2 wide(vec_uint4 words, int ready)
{
	vec_double2 all = { 0, 0 };
	int i;
	for (i = 0; ready && i < 2; i++) {
		unsigned long long both = (unsigned long long)words[2 * i] << 32 | words[2 * i + 1];
		all[i] = ((double)(both >> 12) + 0.5) * 0x1p-52;
	}
	return all;
}

#define EACH(function, V, generator, suffix) \
	void mc_rand_##generator##_##function##array_##suffix(unsigned count, V *array) \
	{ \
		while (count--) \
			*array++ = mc_rand_##generator##_##function##suffix(); \
	}
#define EXTENDED(function, generator) \
	vec_double2 mc_rand_##generator##_##function##d2e(void) { return mc_rand_##generator##_##function##d2(); } \
	void mc_rand_##generator##_##function##array_d2e(vec_double2 *array, unsigned count) \
	{ \
		mc_rand_##generator##_##function##array_d2(count, array); \
	}
#define GENERATOR(generator, ready) \
	vec_uint4 mc_rand_##generator##_u4(void) \
	{ \
		vec_uint4 words = { 0, 0, 0, 0 }; \
		int i; \
		for (i = 0; i < 4; i++) \
			words[i] = generator##_word(); \
		return words; \
	} \
	vec_float4 mc_rand_##generator##_0_to_1_f4(void) { return single(mc_rand_##generator##_u4(), ready); } \
	vec_double2 mc_rand_##generator##_0_to_1_d2(void) { return wide(mc_rand_##generator##_u4(), ready); } \
	vec_float4 mc_rand_##generator##_minus1_to_1_f4(void) \
	{ \
		vec_float4 all = single(mc_rand_##generator##_u4(), ready); \
		return ready ? 2.0f * all - 1.0f : all; \
	} \
	vec_double2 mc_rand_##generator##_minus1_to_1_d2(void) \
	{ \
		vec_double2 all = wide(mc_rand_##generator##_u4(), ready); \
		return ready ? 2.0 * all - 1.0 : all; \
	} \
	EACH(, vec_uint4, generator, u4) \
	EACH(0_to_1_, vec_float4, generator, f4) \
	EACH(minus1_to_1_, vec_float4, generator, f4) \
	EACH(0_to_1_, vec_double2, generator, d2) \
	EACH(minus1_to_1_, vec_double2, generator, d2) \
	EXTENDED(0_to_1_, generator) \
	EXTENDED(minus1_to_1_, generator)
GENERATOR(hw, hw_file >= 0)
GENERATOR(ks, ks_ready)
GENERATOR(mt, mt_ready)

/* Beasley and Springer's quotient in the middle, Moro's polynomial at the ends. */
static double inverse(double u)
{
	static const double ends[] = { 0.3374754822726147, 0.9761690190917186, 0.1607979714918209,
		0.0276438810333863, 0.0038405729373609, 0.0003951896511919, 0.0000321767881768,
		0.0000002888167364, 0.0000003960315187 };
	double y = u - 0.5, r = y * y, x;
	int i;
	if (fabs(y) < 0.42)
		return y * (((-25.44106049637 * r + 41.39119773534) * r - 18.61500062529) * r + 2.50662823884)
			/ ((((3.13082909833 * r - 21.06224101826) * r + 23.08336743743) * r - 8.47351093090) * r + 1);
	r = log(-log(y > 0 ? 1 - u : u));
	x = ends[8];
	for (i = 7; i >= 0; i--)
		x = x * r + ends[i];
	return y < 0 ? -x : x;
}

static const double FULL_TURN = 6.28318530717958647692;

#define TRANSFORMS(V, E, lanes, suffix) \
	V mc_transform_mi_##suffix(V source) \
	{ \
		int i; \
		for (i = 0; i < lanes; i++) \
			source[i] = (E)inverse(source[i]); \
		return source; \
	} \
	void mc_transform_mi_array_##suffix(unsigned count, V *source, V *dest) \
	{ \
		while (count--) \
			*dest++ = mc_transform_mi_##suffix(*source++); \
	} \
	void mc_transform_bm2_array_##suffix(unsigned count, V *source, V *dest) \
	{ \
		unsigned i; \
		int lane; \
		for (i = 0; i + 1 < count; i += 2) { \
			V first = source[i], second = source[i + 1]; \
			for (lane = 0; lane < lanes; lane++) { \
				double length = sqrt(-2 * log(first[lane])), angle = FULL_TURN * second[lane]; \
				dest[i][lane] = (E)(length * cos(angle)); \
				dest[i + 1][lane] = (E)(length * sin(angle)); \
			} \
		} \
	} \
	void mc_transform_bm_array_##suffix(unsigned count, V *source, V *dest) \
	{ \
		unsigned i; \
		int lane; \
		for (i = 0; i + 1 < count; i += 2) { \
			V first = source[i], second = source[i + 1]; \
			for (lane = 0; lane < lanes; lane++) \
				dest[i / 2][lane] = (E)(sqrt(-2 * log(first[lane])) * sin(FULL_TURN * second[lane])); \
		} \
	} \
	/* A pair as normal numbers; 0 where it lies outside of the circle. */ \
	static int polar_##suffix(V *pairs, int at) \
	{ \
		double x = 2.0 * (*pairs)[at] - 1, y = 2.0 * (*pairs)[at + 1] - 1, r = x * x + y * y; \
		double length; \
		if (r >= 1 || r == 0) \
			return 0; \
		length = sqrt(-2 * log(r) / r); \
		(*pairs)[at] = (E)(length * x); \
		(*pairs)[at + 1] = (E)(length * y); \
		return 1; \
	} \
	static V drawn_##suffix(V source, V (*generator)(void)) \
	{ \
		int at; \
		for (at = 0; at < lanes; at += 2) \
			while (!polar_##suffix(&source, at)) { \
				V other = generator(); \
				source[at] = other[at]; \
				source[at + 1] = other[at + 1]; \
			} \
		return source; \
	} \
	V mc_transform_po_##suffix(V (*generator)(void)) { return drawn_##suffix(generator(), generator); } \
	void mc_transform_po_array_##suffix(unsigned count, V *source, V *dest, V (*generator)(void)) \
	{ \
		while (count--) \
			*dest++ = drawn_##suffix(*source++, generator); \
	} \
	unsigned mc_transform_reject_po_array_##suffix(unsigned count, V *source, V *dest) \
	{ \
		unsigned kept = 0, i; \
		int at; \
		V full = { 0 }; \
		for (i = 0; i < count; i++) { \
			V pairs = source[i]; \
			for (at = 0; at < lanes; at += 2) \
				if (polar_##suffix(&pairs, at)) { \
					full[kept % (lanes / 2) * 2] = pairs[at]; \
					full[kept % (lanes / 2) * 2 + 1] = pairs[at + 1]; \
					if (++kept % (lanes / 2) == 0) \
						dest[kept / (lanes / 2) - 1] = full; \
				} \
		} \
		return kept / (lanes / 2); \
	}
TRANSFORMS(vec_float4, float, 4, f4)
TRANSFORMS(vec_double2, double, 2, d2)

/* Large whole numbers, random ones, rounding, and what programs look at that has another place here; the exit
 * status is the number of checks that fail.
 */
#include <libisolation.h>
#include <libmisc.h>
#include <libmpm.h>
#include <mc_rand.h>
#include <simdmath.h>
#include <roundf4.h>
#include <spu_mfcio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

register volatile vector unsigned int both asm("1");
register volatile unsigned int *top asm("1");

static int bad;
static void check(const char *name, int holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

enum { QUADS = 3 };
typedef vector unsigned int number[2 * QUADS];

static int same(vector unsigned int *a, vector unsigned int *b, int size)
{
	return mpm_cmpeq(a, b, size) == 0xffffffff && mpm_cmpge(a, b, size) && !mpm_cmpgt(a, b, size);
}

/* What holds of all numbers, for numbers of a generator. */
static void whole(void)
{
	static vector unsigned int one = { 0, 0, 0, 1 };
	number a, b, m, p, q, r, back, square, d;
	vector unsigned int carry;
	int round;
	mc_rand_mt_init(7);
	for (round = 0; round < 20; round++) {
		mc_rand_mt_array_u4(2 * QUADS, a);
		mc_rand_mt_array_u4(2 * QUADS, b);
		mc_rand_mt_array_u4(2 * QUADS, m);
		/* An odd modulus, sometimes of few words. */
		m[QUADS - 1][3] |= 1;
		if (round & 1)
			m[0] = (vector unsigned int){ 0, 0, 0, 0 };
		mpm_mul(p, a, QUADS, m, QUADS);
		mpm_madd(p, a, QUADS, m, QUADS, &one, 1);
		mpm_div(q, r, p, 2 * QUADS, m, QUADS);
		check("quotient", mpm_cmpeq2(q, 2 * QUADS, a, QUADS) && mpm_cmpeq2(r, QUADS, &one, 1));
		carry = mpm_add(d, a, b, QUADS);
		mpm_sub(back, d, b, QUADS);
		check("sum", same(back, a, QUADS) && carry[3] == (mpm_cmpgt(a, d, QUADS) & 1));
		check("borrow", mpm_sub(back, a, b, QUADS)[3] == (mpm_cmpge(a, b, QUADS) & 1));
		mpm_neg(back, a, QUADS);
		mpm_add(back, back, a, QUADS);
		check("negated", mpm_sizeof(back, QUADS) == 0);
		mpm_square(square, a, QUADS);
		mpm_mul(p, a, QUADS, a, QUADS);
		check("square", same(square, p, 2 * QUADS));
		/* b and b's inverse; the fourth power by squares and by the exponent. */
		mpm_mod(b, b, QUADS, m, QUADS);
		if (mpm_mul_inv(d, m, b, QUADS)) {
			mpm_mul(p, d, QUADS, b, QUADS);
			mpm_fixed_mod_reduction(r, p, m, 0, QUADS);
			check("inverse", mpm_cmpeq2(r, QUADS, &one, 1));
		} else {
			mpm_gcd(d, m, QUADS, b, QUADS);
			check("no inverse", !mpm_cmpeq2(d, QUADS, &one, 1));
		}
		mpm_square(square, b, QUADS);
		mpm_mod(r, square, 2 * QUADS, m, QUADS);
		mpm_square(square, r, QUADS);
		mpm_mod(r, square, 2 * QUADS, m, QUADS);
		vector unsigned int four = { 0, 0, 0, 4 };
		mpm_mod_exp(d, b, &four, 1, m, QUADS, 4);
		check("power", same(d, r, QUADS));
		mpm_mont_mod_exp(d, b, &four, 1, m, QUADS, 4);
		check("power again", same(d, r, QUADS));
		memcpy(d, a, sizeof d);
		mpm_swap_endian(d, QUADS);
		check("swapped", d[0][0] == __builtin_bswap32(a[QUADS - 1][3]));
	}
	/* Words that carry are counted, and come in one place to the left. */
	vector unsigned int ones = { ~0u, ~0u, ~0u, ~0u }, sum, counts = { 0, 0, 0, 0 };
	mpm_add_partial(&sum, &ones, &ones, &counts, 1);
	mpm_add_partial(&sum, &sum, &ones, &counts, 1);
	check("partial", sum[1] == 0xfffffffd && counts[0] == 2 && counts[3] == 2);
	check("longer", mpm_add2(d, &ones, 1, &one, 1) == 2 && d[0][3] == 1 && d[1][0] == 0);
}

static void random_numbers(void)
{
	vector float normal[64], uniform[64];
	double sum = 0, squares = 0;
	int i, lane;
	mc_rand_ks_init(3);
	for (i = 0; i < 256; i++) {
		vector float f = mc_rand_ks_0_to_1_f4();
		vector double d = mc_rand_mt_minus1_to_1_d2();
		check("between", f[0] > 0 && f[3] < 1 && d[0] > -1 && d[1] < 1 && d[0] != d[1]);
	}
	mc_rand_ks_0_to_1_array_f4(64, uniform);
	mc_transform_po_array_f4(64, uniform, normal, &mc_rand_ks_0_to_1_f4);
	for (i = 0; i < 64; i++)
		for (lane = 0; lane < 4; lane++) {
			sum += normal[i][lane];
			squares += normal[i][lane] * normal[i][lane];
		}
	check("normal", sum > -80 && sum < 80 && squares > 180 && squares < 340);
	check("middle", mc_transform_mi_d2((vector double){ 0.5, 0.975 })[0] == 0);
	check("inverted", fabs(mc_transform_mi_d2((vector double){ 0.975, 0.1 })[0] - 1.95996) < 1e-4);
}

int main(unsigned long long id, unsigned long long argp, unsigned long long envp)
{
	vector double d = { 7.5, 9.5 }, parts;
	vector float f = { -2.5f, -1.5f, 1.5f, 2.5f };
	vector signed int words;
	vector double *place = (vector double *)((char *)&words + 5);
	char *many[] = { "name", "-a", "-bvalue", "-c", "rest", 0 };
	char bytes[64] __attribute__((aligned(16))) = "";
	int room = spu_extract(both, 1), letter;
	(void)id;
	(void)envp;
	whole();
	random_numbers();
	/* To the nearest, and by the register's mode for the first slice. */
	check("nearest", nearbyintd2(d)[0] == 8 && rintd2(d)[1] == 10 && rintf4(f)[0] == -2 && rintf4(f)[3] == 2);
	spu_mtfpscr(((vector unsigned int){ 0x400, 0, 0, 0 }));
	check("to zero", nearbyintd2(d)[0] == 7 && nearbyintd2(d)[1] == 10);
	check("register", spu_extract(spu_mffpscr(), 0) == 0x400 && roundf4(f)[0] == -3);
	frexpd2(d, &words);
	check("words", spu_extract(words, 1) == 3 && spu_extract(words, 0) == 0 && spu_extract(words, 3) == 4);
	/* Where the stack is, and how far from the heap. */
	check("stack", top == (void *)spu_extract(both, 0) || (char *)top - (char *)bytes < 4096);
	check("room", room > 100000 && room < 262144 && malloc_align(16384, 7) != 0);
	check("less room", room - spu_extract(both, 1) >= 16384);
	/* Numbers of which the first word is printed. */
	printf("%#x %d %s %c\n", spu_gather(spu_cmpgt((vector unsigned short){ 2, 4, 6, 8, 10, 12, 14, 16 }, 11)),
	       (vector signed int){ -5, 1, 1, 1 }, "text", 'c');
	copyin(argp + 3, bytes + 5, 50);
	check("bytes in", bytes[4] == 0 && bytes[5] == 3 && bytes[54] == 52 && bytes[55] == 0);
	check("any place", copy_to_ls((unsigned int)bytes, argp + 16, 7) == 7 && bytes[6] == 22);
	while ((letter = getopt(5, many, "ab:c")) != -1)
		printf("%c%s ", letter, optarg ? optarg : "");
	printf("%s\n", many[optind]);
	(void)place;
	(void)parts;
	return bad;
}

/* AltiVec's operations that saturate or round, beside sums of plain numbers: all pairs of bytes, all halfwords
 * beside those at the edges, words at the edges and at random. For both sides; the exit status is the number of
 * operations that differ.
 */
#ifdef __SPU__
#include <vmx2spu.h>
#else
#include <altivec.h>
#endif
#include <math.h>
#include <stdio.h>

static int bad;

static void differs(const char *name, long long a, long long b, long long c, long long is, long long wanted)
{
	/* Each operation once. */
	static const char *seen[64];
	int each;
	for (each = 0; each < bad; each++)
		if (seen[each] == name)
			return;
	printf("%s(%lld, %lld, %lld): %lld, not %lld\n", name, a, b, c, is, wanted);
	if (bad < 63)
		seen[bad++] = name;
}

static long long limited(long long x, long long least, long long most)
{
	return x < least ? least : x > most ? most : x;
}

static long long halved(long long x) { return x >> 1; }

/* Numbers that are not all the same: a stream of its own, so that every run is alike. */
static unsigned int drawn(void)
{
	static unsigned int state = 12345;
	state ^= state << 13;
	state ^= state >> 17;
	return state ^= state << 5;
}

static const int edges[] = { -32768, -32767, -16385, -16384, -257, -256, -129, -128, -127, -2, -1, 0, 1, 2, 3, 127,
	128, 129, 255, 256, 257, 511, 16383, 16384, 16385, 32640, 32766, 32767 };
enum { EDGES = sizeof edges / sizeof edges[0] };

static const long long words[] = { -2147483648LL, -2147483647LL, -1073741824, -65537, -65536, -32769, -32768, -257,
	-128, -1, 0, 1, 127, 255, 256, 32767, 32768, 65535, 65536, 1073741823, 1073741824, 2147483646, 2147483647,
	2147483648LL, 4294967040LL, 4294967294LL, 4294967295LL };
enum { WORDS = sizeof words / sizeof words[0] };

/* Element-wise operations of two operands. */
#define PAIR(V, E, a, b, least, most, suffix) do { \
	V x = vec_splats((E)(a)), y = vec_splats((E)(b)); \
	long long p = (E)(a), q = (E)(b); \
	x[1] = (E)(a), y[1] = (E)(b); \
	V sum = vec_adds(x, y), rest = vec_subs(x, y), mean = vec_avg(x, y); \
	if (sum[1] != limited(p + q, least, most)) \
		differs("adds " suffix, p, q, 0, sum[1], limited(p + q, least, most)); \
	if (rest[1] != limited(p - q, least, most)) \
		differs("subs " suffix, p, q, 0, rest[1], limited(p - q, least, most)); \
	if (mean[1] != halved(p + q + 1)) \
		differs("avg " suffix, p, q, 0, mean[1], halved(p + q + 1)); \
} while (0)

static void pairs(void)
{
	int a, b, i;
	for (a = 0; a < 256; a++)
		for (b = 0; b < 256; b++) {
			PAIR(vector unsigned char, unsigned char, a, b, 0, 255, "of unsigned bytes");
			PAIR(vector signed char, signed char, a, b, -128, 127, "of bytes");
		}
	for (a = -32768; a < 32768; a++)
		for (i = 0; i < EDGES; i++) {
			PAIR(vector unsigned short, unsigned short, a, edges[i], 0, 65535, "of unsigned halfwords");
			PAIR(vector signed short, short, a, edges[i], -32768, 32767, "of halfwords");
		}
	for (a = 0; a < WORDS; a++)
		for (b = 0; b < WORDS; b++) {
			PAIR(vector unsigned int, unsigned int, words[a], words[b], 0, 4294967295LL, "of unsigned words");
			PAIR(vector signed int, int, words[a], words[b], -2147483648LL, 2147483647LL, "of words");
		}
}

/* Of one operand: absolute values, and elements of half the size. */
#define PACK(V, E, a, operation, R, least, most, name) do { \
	R packed = operation(vec_splats((E)(a)), vec_splats((E)(a))); \
	long long wanted = limited((E)(a), least, most); \
	if (packed[0] != wanted || packed[16 / sizeof(packed[0]) - 1] != wanted) \
		differs(name, (E)(a), 0, 0, packed[0], wanted); \
} while (0)
#define ABSOLUTE(V, E, a, most, name) do { \
	V size = vec_abss(vec_splats((E)(a))); \
	long long p = (E)(a), wanted = limited(p < 0 ? -p : p, 0, most); \
	if (size[0] != wanted) \
		differs(name, p, 0, 0, size[0], wanted); \
} while (0)

static void singles(void)
{
	int a;
	for (a = -32768; a < 32768; a++) {
		PACK(vector signed short, short, a, vec_packs, vector signed char, -128, 127, "packs of halfwords");
		PACK(vector signed short, short, a, vec_packsu, vector unsigned char, 0, 255, "packsu of halfwords");
		PACK(vector unsigned short, unsigned short, a, vec_packs, vector unsigned char, 0, 255,
		     "packs of unsigned halfwords");
		PACK(vector unsigned short, unsigned short, a, vec_packsu, vector unsigned char, 0, 255,
		     "packsu of unsigned halfwords");
		ABSOLUTE(vector signed char, signed char, a, 127, "abss of bytes");
		ABSOLUTE(vector signed short, short, a, 32767, "abss of halfwords");
	}
	for (a = 0; a < WORDS; a++) {
		PACK(vector signed int, int, words[a], vec_packs, vector signed short, -32768, 32767, "packs of words");
		PACK(vector signed int, int, words[a], vec_packsu, vector unsigned short, 0, 65535, "packsu of words");
		PACK(vector unsigned int, unsigned int, words[a], vec_packs, vector unsigned short, 0, 65535,
		     "packs of unsigned words");
		ABSOLUTE(vector signed int, int, words[a], 2147483647LL, "abss of words");
	}
}

static void products(void)
{
	int a, i, j;
	for (a = -32768; a < 32768; a++)
		for (i = 0; i < EDGES; i++)
			for (j = a & 3; j < EDGES; j += 4) {
				vector signed short x = vec_splats((short)a), y = vec_splats((short)edges[i]);
				vector signed short z = vec_splats((short)edges[j]);
				vector signed short cut = vec_madds(x, y, z), round = vec_mradds(x, y, z);
				long long product = (long long)a * edges[i];
				long long wanted = limited((product >> 15) + edges[j], -32768, 32767);
				long long rounded = limited(((product + 16384) >> 15) + edges[j], -32768, 32767);
				if (cut[3] != wanted)
					differs("madds", a, edges[i], edges[j], cut[3], wanted);
				if (round[3] != rounded)
					differs("mradds", a, edges[i], edges[j], round[3], rounded);
			}
}

/* Sums across, of operands at random and at the edges. */
static void sums(void)
{
	const long long least = -2147483648LL, most = 2147483647LL, all = 4294967295LL;
	int round, i, j;
	for (round = 0; round < 20000; round++) {
		vector signed char sb;
		vector unsigned char ub, vb;
		vector signed short sh, th;
		vector unsigned short uh, vh;
		vector signed int sw, r;
		vector unsigned int uw, u;
		long long across = 0;
		for (i = 0; i < 16; i++) {
			sb[i] = round & 1 ? drawn() : edges[drawn() % EDGES];
			ub[i] = round & 2 ? drawn() : 255;
			vb[i] = drawn();
		}
		for (i = 0; i < 8; i++) {
			sh[i] = round & 1 ? drawn() : edges[drawn() % EDGES];
			th[i] = round & 4 ? drawn() : edges[drawn() % EDGES];
			uh[i] = round & 2 ? drawn() : 65535;
			vh[i] = round & 4 ? drawn() : 65535;
		}
		for (i = 0; i < 4; i++) {
			sw[i] = round & 8 ? drawn() : words[drawn() % WORDS];
			uw[i] = round & 8 ? drawn() : words[drawn() % WORDS];
		}
#define ACROSS(name, result, c, expression, from, to, count) do { \
		for (i = 0; i < 4; i++) { \
			long long x = (c)[i]; \
			for (j = count * i; j < count * (i + 1); j++) \
				x += (expression); \
			if ((result)[i] != limited(x, from, to)) \
				differs(name, (c)[i], i, 0, (result)[i], limited(x, from, to)); \
		} \
	} while (0)
		u = vec_sum4s(ub, uw);
		ACROSS("sum4s of unsigned bytes", u, uw, (long long)ub[j], 0, all, 4);
		r = vec_sum4s(sb, sw);
		ACROSS("sum4s of bytes", r, sw, (long long)sb[j], least, most, 4);
		r = vec_sum4s(sh, sw);
		ACROSS("sum4s of halfwords", r, sw, (long long)sh[j], least, most, 2);
		u = vec_msums(uh, vh, uw);
		ACROSS("msums of unsigned halfwords", u, uw, (long long)uh[j] * vh[j], 0, all, 2);
		r = vec_msums(sh, th, sw);
		ACROSS("msums of halfwords", r, sw, (long long)sh[j] * th[j], least, most, 2);
		/* These wrap. */
		u = vec_msum(ub, vb, uw);
		for (i = 0; i < 4; i++) {
			long long x = uw[i], y = uw[i], z = sw[i], w = sw[i];
			for (j = 0; j < 4; j++) {
				x += ub[4 * i + j] * vb[4 * i + j];
				z += (long long)sb[4 * i + j] * ub[4 * i + j];
			}
			for (j = 0; j < 2; j++) {
				y += (long long)uh[2 * i + j] * vh[2 * i + j];
				w += (long long)sh[2 * i + j] * th[2 * i + j];
			}
			if (u[i] != (unsigned int)x)
				differs("msum of unsigned bytes", i, 0, 0, u[i], (unsigned int)x);
			if (vec_extract(vec_msum(uh, vh, uw), i) != (unsigned int)y)
				differs("msum of unsigned halfwords", i, 0, 0, 0, (unsigned int)y);
			if (vec_extract(vec_msum(sb, ub, sw), i) != (int)z)
				differs("msum of bytes", i, 0, 0, 0, (int)z);
			if (vec_extract(vec_msum(sh, th, sw), i) != (int)w)
				differs("msum of halfwords", i, 0, 0, 0, (int)w);
		}
		r = vec_sum2s(sw, (vector signed int)uw);
		for (i = 0; i < 4; i += 2) {
			long long x = limited((long long)sw[i] + sw[i + 1] + (int)uw[i + 1], least, most);
			if (r[i] || r[i + 1] != x)
				differs("sum2s", i, 0, 0, r[i + 1], x);
		}
		for (i = 0; i < 4; i++)
			across += sw[i];
		r = vec_sums(sw, (vector signed int)uw);
		across = limited(across + (int)uw[3], least, most);
		if (r[0] || r[1] || r[2] || r[3] != across)
			differs("sums", 0, 0, 0, r[3], across);
	}
}

static float of_bits(unsigned int bits)
{
	union { unsigned int bits; float value; } view;
	view.bits = bits;
	return view.value;
}

/* Conversions: every hundredth-or-so pattern of a float, with all scales. */
static void conversions(void)
{
	unsigned int bits = 0;
	do {
		float a = of_bits(bits);
		vector float v = vec_splats(a);
		int number = (bits & 0x7fffffff) <= 0x7f800000;
#define CONVERTED(n) do { \
		double x = number ? (double)a * (1u << (n)) : 0; \
		long long s = x >= 2147483647.0 ? 2147483647LL : x <= -2147483648.0 ? -2147483648LL : (long long)x; \
		long long u = x >= 4294967295.0 ? 4294967295LL : x <= 0 ? 0 : (long long)x; \
		if (vec_extract(vec_cts(v, n), 2) != s) \
			differs("cts", bits, n, 0, vec_extract(vec_cts(v, n), 2), s); \
		if (vec_extract(vec_ctu(v, n), 2) != u) \
			differs("ctu", bits, n, 0, vec_extract(vec_ctu(v, n), 2), u); \
	} while (0)
		CONVERTED(0);
		CONVERTED(1);
		CONVERTED(8);
		CONVERTED(31);
		if (number && fabsf(a) < 1e9f) {
			float whole = (float)(long long)a, less = whole > a ? whole - 1 : whole;
			float next = less + 1, half = a - less;
			int even = fmodf(less, 2) == 0;
			float near = half < 0.5f || (half == 0.5f && even) ? less : next;
			if (vec_extract(vec_trunc(v), 0) != whole || vec_extract(vec_floor(v), 1) != less)
				differs("trunc, floor", bits, 0, 0, 0, 0);
			if (vec_extract(vec_ceil(v), 0) != (less == a ? a : next))
				differs("ceil", bits, 0, 0, 0, 0);
			if (fabsf(a) < 8388608 && vec_extract(vec_round(v), 3) != near)
				differs("round", bits, 0, 0, 0, 0);
		}
		bits += 4099;
	} while (bits >= 4099);
}

/* Truth values beside signed elements. */
static void truths(void)
{
	vector signed short a = { 5, -5, 32767, -32768, 0, 1, -1, 2 };
	vector bool short none = vec_cmpgt(a, a), all = vec_cmpeq(a, a);
	vector signed short least = vec_min(all, a), most = vec_max(none, a), sum = vec_adds(all, a);
	int i;
	for (i = 0; i < 8; i++) {
		if (least[i] != (a[i] < -1 ? a[i] : -1) || most[i] != (a[i] > 0 ? a[i] : 0))
			differs("min, max of truths", a[i], 0, 0, least[i], most[i]);
		if (sum[i] != limited(a[i] - 1, -32768, 32767))
			differs("adds of truths", a[i], 0, 0, sum[i], a[i] - 1);
	}
}

#ifdef __SPU__
/* The SPU's own: floats without infinities, cut and not rounded. */
static void own_conversions(void)
{
	unsigned int bits = 0;
	int i;
	do {
		/* Patterns of the largest exponent are numbers, too. */
		int size = bits & 0x7fffffff, minus = bits >> 31;
		double x = size >= 0x7f800000 ? 3e38 : of_bits(size);
		vector float v = vec_splats(of_bits(bits));
		long long s = minus ? (x >= 2147483648.0 ? -2147483648LL : -(long long)x)
				    : (x >= 2147483647.0 ? 2147483647LL : (long long)x);
		long long u = minus ? 0 : x >= 4294967295.0 ? 4294967295LL : (long long)x;
		if (spu_extract(spu_convts(v, 0), 1) != s)
			differs("convts", bits, 0, 0, spu_extract(spu_convts(v, 0), 1), s);
		if (spu_extract(spu_convtu(v, 0), 1) != u)
			differs("convtu", bits, 0, 0, spu_extract(spu_convtu(v, 0), 1), u);
		bits += 4099;
	} while (bits >= 4099);
	for (i = 0; i < 200000; i++) {
		unsigned int x = i < WORDS ? words[i] : drawn() >> (i & 31);
		unsigned int size = (int)x < 0 ? -x : x, lost = 0;
		while (x >> lost >> 24)
			lost++;
		if (spu_extract(spu_convtf(spu_splats(x), 0), 2) != (float)(x >> lost << lost))
			differs("convtf of unsigned", x, 0, 0, 0, 0);
		for (lost = 0; size >> lost >> 24;)
			lost++;
		size = size >> lost << lost;
		if (spu_extract(spu_convtf(spu_splats((int)x), 0), 2) != ((int)x < 0 ? -(float)size : (float)size))
			differs("convtf", (int)x, 0, 0, 0, 0);
	}
}
#endif

int main(void)
{
	pairs();
	singles();
	products();
	sums();
	conversions();
	truths();
#ifdef __SPU__
	own_conversions();
#endif
	return bad;
}

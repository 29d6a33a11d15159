/* Bits as the SPU has them, where source looks into vectors by bytes; each check prints its name where it
 * does not hold; the exit status is their number. */
#include <spu_intrinsics.h>
#include <stdio.h>
#include <string.h>

static int bad;
static void check(const char *name, int holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

typedef vector unsigned char bytes_t;
static unsigned char pixels[16] __attribute__((aligned(16))) = { 10, 20, 30, 255, 11, 21, 31, 255, 12, 22,
								 32, 255, 13, 23, 33, 255 };
/* Initializers that the compiler evaluates. */
static vec_uchar16 splat_third = (vec_uchar16)(vec_uint4){ 0x08090a0b, 0x08090a0b, 0x08090a0b, 0x08090a0b };
static const vector unsigned short halves = (vector unsigned short)((vec_uint4){ 0x00010203, 0x04050607, 1, 2 });

/* RGBA bytes into one grey byte each. */
static void grey(void)
{
	vector unsigned char *in = (vector unsigned char *)pixels, out;
	vector unsigned char zero = (vector unsigned char)(0);
	vector unsigned char r = (vector unsigned char){ 0x10, 0x10, 0x10, 0x00, 0x10, 0x10, 0x10, 0x04,
							 0x10, 0x10, 0x10, 0x08, 0x10, 0x10, 0x10, 0x0c };
	vector unsigned char b = { 0x10, 0x10, 0x10, 0x02, 0x10, 0x10, 0x10, 0x06, 0x10, 0x10, 0x10, 0x0a,
				   0x10, 0x10, 0x10, 0x0e };
	vector unsigned char last = { 0x03, 0x03, 0x03, 0x13, 0x07, 0x07, 0x07, 0x17, 0x0b, 0x0b, 0x0b, 0x1b,
				      0x0f, 0x0f, 0x0f, 0x1f };
	vector float red = spu_convtf((vector unsigned int)spu_shuffle(in[0], zero, r), 0);
	vector float blue = spu_convtf((vector unsigned int)spu_shuffle(in[0], zero, b), 0);
	vector unsigned int y = spu_convtu(spu_add(red, blue), 0);
	out = spu_shuffle((vector unsigned char)y, in[0], last);
	check("red", spu_extract(red, 0) == 10 && spu_extract(red, 3) == 13);
	check("blue", spu_extract(blue, 1) == 31);
	check("grey", spu_extract(out, 0) == 40 && spu_extract(out, 3) == 255 && spu_extract(out, 12) == 46);
}

/* 32-bit products by halfwords. */
static vec_uint4 product(vec_uint4 a, vec_uint4 b)
{
	vec_short8 x = (vec_short8)a, y = (vec_short8)b;
	return (vec_uint4)spu_add((vec_int4)spu_mulh(x, y), spu_add((vec_int4)spu_mulh(y, x),
		(vec_int4)spu_mulo((vec_ushort8)x, (vec_ushort8)y)));
}

static void words(void)
{
	vec_uint4 a = { 0x01020304, 0xa0b0c0d0, 7, 0x80000000 };
	vec_uint4 p = product((vec_uint4){ 100000, 3, 65537, 70000 }, (vec_uint4){ 30000, 4, 65537, 3 });
	vec_float4 f = { 1.0f, -2.0f, 0.5f, 0 };
	vec_uchar16 low = (vec_uchar16)a;
	vec_ushort8 h = (vec_ushort8)a;
	vec_double2 d = { 1.0, -2.0 };
	check("bytes", spu_extract(low, 0) == 1 && spu_extract(low, 3) == 4 && spu_extract(low, 4) == 0xa0);
	check("bytes at once", spu_extract((vec_uchar16)a, 7) == 0xd0);
	check("halves", spu_extract(h, 0) == 0x0102 && spu_extract(h, 1) == 0x0304);
	check("float", spu_extract((bytes_t)f, 0) == 0x3f && spu_extract((bytes_t)f, 1) == 0x80);
	check("double", spu_extract((vec_uint4)d, 0) == 0x3ff00000 && spu_extract((vec_uint4)d, 2) == 0xc0000000);
	check("long", spu_extract((vec_ullong2)a, 0) == 0x01020304a0b0c0d0ULL);
	check("product", spu_extract(p, 0) == 3000000000u && spu_extract(p, 1) == 12
	      && spu_extract(p, 2) == 131073 && spu_extract(p, 3) == 210000);
	check("and back", spu_extract((vec_uint4)(vec_uchar16)a, 1) == 0xa0b0c0d0);
	check("mask", spu_extract((vec_uint4)spu_maskb(0x8421), 0) == 0xff000000
	      && spu_extract((vec_uint4)spu_maskb(0x8421), 3) == 0x000000ff);
	check("turn", spu_extract((vec_uint4)spu_rlqwbyte((vec_uchar16)a, 1), 0) == 0x020304a0);
	check("count", spu_extract(spu_sumb(spu_cntb((vec_uchar16)a), (vec_uchar16)a), 0) == 10);
	check("pattern", spu_extract(spu_shuffle(a, a, splat_third), 0) == 7);
	check("constant", spu_extract(halves, 0) == 0x0001 && spu_extract(halves, 5) == 1);
	check("gather", spu_extract(spu_gather((vec_uchar16)a), 0) == 0xa010);
}

/* The transpose of four vectors by patterns made of words. */
static void transpose(void)
{
	static vec_uchar16 high = (vec_uchar16)(vector unsigned int)(0x00010203, 0x10111213, 0x04050607, 0x14151617);
	static vec_uchar16 low = (vec_uchar16)(vector unsigned int)(0x08090a0b, 0x18191a1b, 0x0c0d0e0f, 0x1c1d1e1f);
	vec_float4 a = { 0, 1, 2, 3 }, b = { 4, 5, 6, 7 }, c = { 8, 9, 10, 11 }, d = { 12, 13, 14, 15 };
	vec_float4 ac = spu_shuffle(a, c, high), bd = spu_shuffle(b, d, high);
	vec_float4 first = spu_shuffle(ac, bd, high), second = spu_shuffle(ac, bd, low);
	check("transpose", spu_extract(first, 1) == 4 && spu_extract(first, 3) == 12
	      && spu_extract(second, 0) == 1 && spu_extract(second, 2) == 9);
}

/* A table of sixteen bytes, looked up by the low bits of each byte of words. */
static void table(void)
{
	vec_uchar16 hex = { '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f' };
	vec_uint4 word = spu_splats(0x0f0e0a01u);
	vec_uchar16 found = spu_shuffle(hex, hex, (vec_uchar16)word);
	check("table", spu_extract(found, 0) == 'f' && spu_extract(found, 3) == '1');
	check("table as words", spu_extract((vec_uint4)found, 0) == 0x66656131);
}

/* Bytes of a vector by unions and pointers. */
static void looks(void)
{
	union { vec_uint4 v; unsigned char byte[16]; unsigned short part[8]; unsigned int words[4]; } u;
	vec_uint4 v = { 0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10 };
	unsigned char *p = (unsigned char *)&v;
	int k, right = 1;
	vec_uchar16 whole = *(vec_uchar16 *)&v, again = (*((vec_uchar16 *)&v));
	u.v = v;
	for (k = 0; k < 16; k++)
		right &= u.byte[k] == k + 1 && p[k] == k + 1 && ((unsigned char *)&v)[k] == k + 1;
	u.byte[5] = 0xff;
	check("views", spu_extract(whole, 1) == 2 && spu_extract(again, 15) == 16);
	check("looks", right && u.part[1] == 0x0304 && u.words[1] == 0x05ff0708);
}

/* Halves of an address and bytes of a word. */
static void numbers(void)
{
	union { unsigned long long ull; unsigned int ui[2]; void *p; } address;
	union { unsigned int word; unsigned short half[2]; unsigned char bytes[4]; } u;
	address.ull = 0x0102030405060708ULL;
	check("address", address.ui[0] == 0x01020304 && address.ui[1] == 0x05060708);
	u.word = 0x0a0b0c0d;
	check("word", u.half[0] == 0x0a0b && u.bytes[0] == 0x0a && u.bytes[3] == 0x0d);
	u.bytes[1] = 0xff;
	check("stored", u.word == 0x0aff0c0d);
}

/* A register in a union of all its types, by elements of each size, copied, handed on and returned. */
typedef union {
	vec_uchar16 vuc;
	vec_ushort8 vus;
	vec_uint4 vui;
	vec_float4 vf;
	vec_ullong2 vull;
	vec_double2 vd;
	unsigned char uc[16];
	short s[8];
	unsigned int ui[4];
	float f[4];
	unsigned long long ull[2];
	double d[2];
} reg;
static reg first;

static unsigned int folded(reg r)
{
	unsigned int i, all = 0;
	for (i = 0; i < 16; i++)
		all = all * 3 + r.uc[i];
	return all;
}

static reg counted(unsigned int from)
{
	reg r;
	unsigned int i;
	for (i = 0; i < 16; i++)
		r.uc[i] = from + i;
	return r;
}

static void registers(void)
{
	vec_uint4 words = { 0x01020304, 0x05060708, 0x090a0b0c, 0x0d0e0f10 };
	reg r, all[2];
	int i, right = 1;
	first.vui = words;
	for (i = 0; i < 16; i++)
		right &= first.uc[i] == i + 1;
	r = first;
	all[1] = counted(1);
	check("elements", right && r.s[3] == 0x0708 && r.ull[1] == 0x090a0b0c0d0e0f10ULL);
	check("vectors", spu_extract(r.vuc, 3) == 4 && spu_extract(all[1].vus, 7) == 0x0f10);
	check("handed on", folded(r) == folded(all[1]) && folded(counted(2)) != folded(r));
	r.ui[2] = 0x3f800000;
	check("number", r.f[2] == 1.0f && spu_extract(r.vf, 2) == 1.0f && spu_extract(r.vuc, 9) == 0x80);
	r.vuc = all[0].vui = spu_add(first.vui, 1);
	check("chain", all[0].ui[3] == 0x0d0e0f11 && r.uc[15] == 0x11 && spu_extract(r.vull, 0) == 0x0102030505060709ULL);
	r.d[1] = -2.0;
	check("double", spu_extract(r.vd, 1) == -2.0 && r.ui[2] == 0xc0000000 && spu_extract(r.vui, 3) == 0);
	r.vuc = spu_shuffle(r.vuc, r.vuc, first.vuc);
	check("shuffled", r.uc[14] == (unsigned char)spu_extract(r.vuc, 14));
}

/* A string's place in sixteen bytes, by comparison and gathering. */
static void search(void)
{
	vec_uchar16 text;
	unsigned int found;
	memcpy(&text, "the cell's place", 16);
	found = spu_extract(spu_gather(spu_cmpeq(text, (unsigned char)'c')), 0);
	check("search", spu_extract(spu_cntlz(spu_splats(found)), 0) - 16 == 4);
}

static void quadwords(void)
{
	qword a = (qword)(vec_uint4){ 0x01020304, 0xa0b0c0d0, 7, 9 };
	qword t, m = si_fsmbi(0xf00f);
	qword s = si_shufb(a, a, (qword)(vec_uint4){ 0x03020100, 0x80808003, 0, 0 });
	t = si_rotqbyi(a, 1);
	check("ila", si_to_uint(si_shufb(a, a, si_ila(0x10203))) == 0x01020304);
	check("rotqbyi", si_to_uint(t) == 0x020304a0);
	check("fsmbi", si_to_uint(m) == 0xffffffff && spu_extract((vec_uint4)m, 3) == 0xffffffff);
	check("shufb", si_to_uint(s) == 0x04030201 && spu_extract((vec_uint4)s, 1) == 0x00000004);
	check("uchar", si_to_uchar(si_from_uint(0x1234)) == 0x34 && si_to_uint(si_from_uchar(7)) == 7);
	check("a", si_to_uint(si_a(a, si_from_uint(1))) == 0x01020305);
	check("insert", si_to_uint(si_shufb(si_from_uchar(0xee), a, si_cbd(si_from_uint(0), 1))) == 0x01ee0304);
	check("xshw", si_to_int(si_xshw((qword)(vec_uint4){ 0x1234ffff })) == -1);
}

int main(void)
{
	vec_uchar16 memory[2];
	vec_float4 f;
	/* Memory of bytes that holds floats, as buffers of the time did. */
	((float *)memory)[4] = 2.5f;
	f = (vec_float4)memory[1];
	memory[0] = (vec_uchar16)f;
	check("memory", spu_extract(f, 0) == 2.5f && ((float *)memory)[0] == 2.5f);
	grey();
	words();
	transpose();
	table();
	looks();
	registers();
	numbers();
	search();
	quadwords();
	return bad;
}

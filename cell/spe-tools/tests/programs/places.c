/* Pointers from places in the store, which come by mailbox, as constants and in structures, and numbers from
 * pointers; each check prints its name where it does not hold; the exit status is their number. */
#include <spu_mfcio.h>
#include <stdint.h>
#include <stdio.h>

typedef void *local;
typedef int (*function)(int);
struct message {
	unsigned int place;
	unsigned int bits : 20;
	int *pointer;
};

static int bad;
static volatile unsigned int zero;
static int table[4] = { 1, 2, 3, 4 };
/* What the compiler evaluates stays a number. */
static void *const mark = (void *)0x21;

static void check(const char *name, int holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

static int twice(int n) { return 2 * n; }

static unsigned int sum(unsigned int place, unsigned int count)
{
	unsigned int i, all = 0;
	for (i = 0; i < count; i++)
		all += *(unsigned int *)(place + 4 * i);
	return all;
}

int main(void)
{
	unsigned int base = spu_read_in_mbox(), i, count = 0;
	struct message m = { base, base, 0 };
	vector float *v = (vector float *)(base + 0x400), one = { 1, 2, 3, 4 };
	int *p, *own = table, side = 0;
	local l;

	/* Constants, variables, elements. */
	*(int *)0x30000 = 5;
	check("constant", *(volatile int *)0x30000 == 5 && ((int *)0x2fffc)[1] == 5);
	for (i = 0; i < 100; i++)
		((unsigned int *)base)[i] = i;
	check("loop", sum(base, 100) == 4950);
	v[1] = one;
	check("vector", ((float *)(base + 0x410))[2] == 3 && spu_extract(*(vec_float4 *)(base + 0x410), 3) == 4);
	/* Members. */
	m.pointer = (int *)m.place;
	check("member", m.pointer[7] == 7 && *(int *)(m.place + 12) == 3 && *(int *)m.bits == 0);
	/* The same number comes back, and a pointer of the program's is a place. */
	check("back", (unsigned int)m.pointer == base && (uintptr_t)(v + 1) == base + 0x410);
	check("forth", (unsigned int)table < 0x40000 && *(int *)(unsigned int)&table[2] == 3);
	check("wide", (unsigned long long)(uintptr_t)own == (unsigned int)own && *(int *)(uint64_t)base == 0);
	check("between", (void *)(v + 1) - (void *)m.pointer == 0x410 && (int *)(char *)own == own);
	/* 0 and other small numbers are none. */
	check("null", (void *)zero == 0 && !(int *)zero && (zero ? (int *)base : (int *)0) == 0);
	check("small", (unsigned long)(void *)(zero + 21) == 21 && mark == (void *)(zero + 0x21));
	check("offset", (int)&((struct message *)0)->pointer == 8);
	/* The store's end, as loops have it; above it nothing is changed. */
	for (p = (int *)0x3f000; p < (int *)0x40000; p++)
		count++;
	check("end", count == 1024 && (unsigned int)(int *)0x40000 == 0x40000);
	check("wrapped", (char *)(base + 0x40000) - (char *)base == 0x40000);
	check("above", (unsigned int)(void *)(zero - 1) == 0xffffffff
	      && (unsigned int)(void *)(zero + 0x12345678) == 0x12345678);
	/* Names of types, functions, and what is done once. */
	l = (local)(base + 4);
	check("name", *(int *)l == 1);
	check("function", ((int (*)(int))(unsigned int)twice)(4) == 8 && ((function)(unsigned int)twice)(5) == 10);
	check("once", *(int *)(base + 4 * side++) == 0 && side == 1);
	return bad;
}

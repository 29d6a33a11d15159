/* Assembly of the PowerPC as hosts have it in their functions; the exit status is the number of what is wrong. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int wrong;
static void check(const char *what, unsigned long long found, unsigned long long wanted)
{
	if (found != wanted) {
		printf("%s: %llx, not %llx\n", what, found, wanted);
		wrong++;
	}
}

/* A loop of one statement. */
static int add(volatile int *place, int more)
{
	int old, sum;
	__asm__ __volatile__("1:	lwarx	%0,0,%3\n"
			     "	add	%1,%0,%4	# the sum\n"
			     "	stwcx.	%1,0,%3\n"
			     "	bne-	1b\n"
			     "	isync"
			     : "=&r"(old), "=&r"(sum), "+m"(*place)
			     : "r"(place), "r"(more)
			     : "cc", "memory");
	return old;
}

static int exchange_if(volatile unsigned *place, unsigned was, unsigned is)
{
	unsigned old;
	asm volatile("\n1: lwarx %[old],%y[place]; cmpw %[old],%[was]; bne- 2f; stwcx. %[is],%y[place]; bne- 1b\n2:"
		     : [old] "=&r"(old), [place] "+Z"(*place)
		     : [was] "r"(was), [is] "r"(is)
		     : "cr0", "memory");
	return old == was;
}

/* Reservation and store in statements of their own. */
#define LOAD(type, name, place) ({ type x; asm volatile(name " %0,%y1" : "=r"(x) : "Z"(*(place))); x; })
#define STORE(name, place, value) ({ unsigned flags; \
	asm volatile(name " %2,%y1\n\tmfocrf %0,0x80" : "=r"(flags), "=Z"(*(place)) : "r"(value)); \
	(flags & 0x20000000) >> 29; })

struct item {
	struct item *next;
	int number;
};
static struct item *volatile top;
static struct item items[64];

static void push(struct item *one)
{
	do {
		one->next = LOAD(struct item *, "ldarx", &top);
		__asm__ volatile("lwsync" : : : "memory");
	} while (!STORE("stdcx.", &top, one));
}

static struct item *pop(void)
{
	struct item *first;
	do {
		first = LOAD(struct item *, "ldarx", &top);
		if (!first)
			return 0;
	} while (!STORE("stdcx.", &top, first->next));
	return first;
}

static volatile int sum, locked;
static int plain;

static void *work(void *unused)
{
	int i;
	for (i = 0; i < 20000; i++) {
		add(&sum, 3);
		while (!exchange_if((volatile unsigned *)&locked, 0, 1))
			__asm__ volatile("or 31,31,31");
		plain++;
		__asm__ volatile("lwsync" ::: "memory");
		locked = 0;
		if (sizeof(long) == 8) {
			struct item *one = pop();
			if (one)
				push(one);
		}
	}
	return unused;
}

static unsigned long long time_base(void)
{
	unsigned high, low, again;
	do {
		__asm__ volatile("mftbu %0" : "=r"(high));
		__asm__ volatile("mftb %0" : "=r"(low));
		__asm__ volatile("mftbu %0" : "=r"(again));
	} while (high != again);
	return (unsigned long long)high << 32 | low;
}

static unsigned long long time_base_at_once(void)
{
	unsigned long long now;
	unsigned other;
	asm volatile("0: mftbu %0\n mftb %L0\n mftbu %1\n cmpw %0,%1\n bne 0b" : "=r"(now), "=r"(other) : : "cc");
	return now;
}

static void words(void)
{
	unsigned long long wide, carry;
	unsigned x, y, high = 0x11223344u, low = 0x55667788u;
	int n;
	char text[4] = {1, 2, 3, 4};
	unsigned char line[256] __attribute__((aligned(128)));

	asm("cntlzw %0,%1" : "=r"(n) : "r"(0x00010000));
	check("cntlzw", n, 15);
	asm("rlwinm %0,%1,%2,%3,31" : "=r"(x) : "r"(0x12345678u), "i"(8), "n"(24));
	check("rlwinm", x, 0x12);
	y = 0xaaaaaaaau;
	asm("rlwimi %0,%1,16,8,15" : "+r"(y) : "r"(0x12345678u));
	check("rlwimi", y, 0xaa78aaaau);
	asm("rldimi %0,%2,32,0" : "=&r"(wide) : "0"((unsigned long long)low), "r"(high));
	check("rldimi", wide, 0x1122334455667788ULL);
	asm("mulhwu %0,%1,%2" : "=r"(x) : "r"(0xffffffffu), "r"(0x10u));
	check("mulhwu", x, 15);
	asm("mulhw %0,%1,%2" : "=r"(n) : "r"(-5), "r"(0x40000000));
	check("mulhw", (unsigned)n, 0xfffffffeu);
	asm("srawi %0,%1,4\n\textsb %0,%0" : "=r"(n) : "r"(0x7ff0));
	check("srawi and extsb", (unsigned)n, 0xffffffffu);
	asm("divw %0,%1,%2" : "=r"(n) : "r"(-7), "r"(2));
	check("divw", (unsigned)n, (unsigned)-3);
	asm("andi. %0,%1,0xf0\n bne 1f\n li %0,77\n1:" : "=r"(x) : "r"(15));
	check("andi. and a branch", x, 77);
	asm("li %0,0\n mtctr %1\n1: addi %0,%0,3\n bdnz 1b" : "=&r"(x) : "r"(5) : "ctr");
	check("bdnz", x, 15);
	asm("lbz %0,2(%1)\n lwzx 9,0,%1\n add %0,%0,9" : "=&r"(x) : "b"(text) : "r9");
	check("loads", x, 0x04030204u);
	asm("stb%U0%X0 %1,%0" : "=m"(text[1]) : "r"(9));
	check("stb", (unsigned char)text[1], 9);
	asm("lwbrx %0,0,%1" : "=r"(x) : "r"(text), "m"(text));
	check("lwbrx", x, 0x01090304u);
	asm("mfcr %0" : "=r"(x));
	check("mfcr", x, 0);
	asm("cmplwi cr7,%1,4\n mfcr %0" : "=r"(x) : "r"(5) : "cr7");
	check("cmplwi", x, 4);
	memset(line, 1, sizeof line);
	asm volatile("dcbz 0,%0" : : "r"(line + 130) : "memory");
	check("dcbz", line[127] << 16 | line[128] << 8 | line[255], 0x10000);
	asm("addic %0,%2,-1\n adde %1,%3,%3" : "=&r"(wide), "=r"(carry) : "r"(0L), "r"(4L));
	check("addic and adde", carry, 8);
	asm("isync; dcbt 0,%0; nop; ori 0,0,0" : : "r"(text));
}

static void floats(void)
{
	double x = 3.0, y;
	float single = 1.5f;
	asm("fmadd %0,%1,%2,%3" : "=f"(y) : "f"(x), "f"(2.0), "f"(0.5));
	check("fmadd", y == 6.5, 1);
	asm("fsel %0,%1,%2,%3" : "=f"(y) : "f"(-1.0), "f"(2.0), "f"(0.25));
	check("fsel", y == 0.25, 1);
	asm("lfs %0,%1" : "=f"(y) : "m"(single));
	check("lfs", y == 1.5, 1);
}

int main(void)
{
	pthread_t threads[4];
	unsigned long long first = time_base(), second;
	struct item *one;
	int i, count = 0;

	for (i = 0; i < 64 && sizeof(long) == 8; i++)
		push(&items[i]);
	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], 0, work, 0);
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], 0);
	check("sum", sum, 240000);
	check("what the lock guards", plain, 80000);
	while (sizeof(long) == 8 && (one = pop())) {
		check("an item is there once", one->number++, 0);
		count++;
	}
	check("items", count, sizeof(long) == 8 ? 64 : 0);
	second = time_base_at_once();
	check("time", second > first && second - first < 1ULL << 40, 1);
	if (sum)
		__asm__ volatile("sync");
	else
		__asm__ volatile("eieio" ::: "memory");
	words();
	floats();
	return wrong;
}

/* Random numbers of 48 bits by the linear congruence that POSIX gives: X = a X + c modulo 2^48. */
#include <stdlib.h>

static const unsigned long long MASK = (1ULL << 48) - 1, FACTOR = 0x5deece66dULL;
static unsigned long long factor = 0x5deece66dULL, added = 0xb, own = 0x1234abcd330eULL;

static unsigned long long joined(const unsigned short parts[3])
{
	return parts[0] | (unsigned long long)parts[1] << 16 | (unsigned long long)parts[2] << 32;
}

static void divided(unsigned long long x, unsigned short parts[3])
{
	parts[0] = x;
	parts[1] = x >> 16;
	parts[2] = x >> 32;
}

static unsigned long long next(unsigned long long x) { return (x * factor + added) & MASK; }
static unsigned long long next_own(void) { return own = next(own); }
static unsigned long long next_of(unsigned short parts[3])
{
	unsigned long long x = next(joined(parts));
	divided(x, parts);
	return x;
}

double drand48(void) { return next_own() * 0x1p-48; }
double erand48(unsigned short parts[3]) { return next_of(parts) * 0x1p-48; }
long lrand48(void) { return next_own() >> 17; }
long nrand48(unsigned short parts[3]) { return next_of(parts) >> 17; }
long mrand48(void) { return (int)(next_own() >> 16); }
long jrand48(unsigned short parts[3]) { return (int)(next_of(parts) >> 16); }

void srand48(long seed)
{
	factor = FACTOR;
	added = 0xb;
	own = (unsigned long long)(unsigned int)seed << 16 | 0x330e;
}

unsigned short *seed48(unsigned short parts[3])
{
	static unsigned short before[3];
	divided(own, before);
	factor = FACTOR;
	added = 0xb;
	own = joined(parts);
	return before;
}

void lcong48(unsigned short all[7])
{
	own = joined(all);
	factor = joined(all + 3);
	added = all[6];
}

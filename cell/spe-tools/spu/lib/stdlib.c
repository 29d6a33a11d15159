/* Numbers out of text, sorting, searching, random numbers, characters, assertions. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int blank(int byte) { return byte == ' ' || (byte >= 9 && byte <= 13); }

static int digit_of(int byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	byte |= 32;
	return byte >= 'a' && byte <= 'z' ? byte - 'a' + 10 : 99;
}

/* The number's size; `end` stays at the start where there is none. */
static unsigned long long size_of(const char *text, char **end, int base, int *negative, int *over)
{
	const char *at = text;
	unsigned long long value = 0;
	int any = 0, digit;
	*negative = *over = 0;
	while (blank(*at))
		at++;
	if (*at == '-' || *at == '+')
		*negative = *at++ == '-';
	if ((base == 0 || base == 16) && at[0] == '0' && (at[1] | 32) == 'x' && digit_of(at[2]) < 16) {
		at += 2;
		base = 16;
	}
	if (base == 0)
		base = *at == '0' ? 8 : 10;
	for (; (digit = digit_of((unsigned char)*at)) < base; at++, any = 1) {
		if (value > (ULLONG_MAX - digit) / base)
			*over = 1;
		value = value * base + digit;
	}
	if (end)
		*end = (char *)(any ? at : text);
	return value;
}

#define SIGNED(name, type, least, most)                                                            \
	type name(const char *text, char **end, int base)                                          \
	{                                                                                          \
		int negative, over;                                                                \
		unsigned long long size = size_of(text, end, base, &negative, &over);              \
		if (over || size > (unsigned long long)(most) + negative) {                        \
			errno = ERANGE;                                                            \
			return negative ? least : most;                                            \
		}                                                                                  \
		return negative ? -size : size;                                                    \
	}
#define UNSIGNED(name, type, most)                                                                 \
	type name(const char *text, char **end, int base)                                          \
	{                                                                                          \
		int negative, over;                                                                \
		unsigned long long size = size_of(text, end, base, &negative, &over);              \
		if (over || size > (most)) {                                                       \
			errno = ERANGE;                                                            \
			return most;                                                               \
		}                                                                                  \
		return negative ? -size : size;                                                    \
	}

SIGNED(strtol, long, LONG_MIN, LONG_MAX)
SIGNED(strtoll, long long, LLONG_MIN, LLONG_MAX)
UNSIGNED(strtoul, unsigned long, ULONG_MAX)
UNSIGNED(strtoull, unsigned long long, ULLONG_MAX)

int atoi(const char *text) { return strtol(text, 0, 10); }
long atol(const char *text) { return strtol(text, 0, 10); }
long long atoll(const char *text) { return strtoll(text, 0, 10); }

/* A number in the form of %a, behind its 0x. */
static double hexadecimal(const char *at, char **end)
{
	long double value = 0;
	int exponent = 0, fraction = 0, digit, part = 0;
	for (;; at++) {
		if (*at == '.' && !fraction) {
			fraction = 1;
			continue;
		}
		digit = digit_of((unsigned char)*at);
		if (digit >= 16)
			break;
		value = value * 16 + digit;
		exponent -= fraction ? 4 : 0;
	}
	if ((*at | 32) == 'p') {
		const char *sign = at + 1 + (at[1] == '-' || at[1] == '+');
		if (*sign >= '0' && *sign <= '9') {
			for (; *sign >= '0' && *sign <= '9'; sign++)
				part = part < 10000 ? part * 10 + *sign - '0' : part;
			exponent += at[1] == '-' ? -part : part;
			at = sign;
		}
	}
	if (end)
		*end = (char *)at;
	return ldexpl(value, exponent);
}

/* Nineteen digits are an exact integer; with 64 bits of mantissa their power of ten costs the last place
 * of a double at worst. */
double strtod(const char *text, char **end)
{
	const char *at = text;
	unsigned long long digits = 0;
	int negative = 0, any = 0, places = 0, exponent = 0;
	long double value;
	while (blank(*at))
		at++;
	if (*at == '-' || *at == '+')
		negative = *at++ == '-';
	if (!strncasecmp(at, "inf", 3) || !strncasecmp(at, "nan", 3)) {
		value = (*at | 32) == 'i' ? INFINITY : NAN;
		at += !strncasecmp(at, "infinity", 8) ? 8 : 3;
		if (end)
			*end = (char *)at;
		return negative ? -value : value;
	}
	if (at[0] == '0' && (at[1] | 32) == 'x' && (digit_of(at[2]) < 16 || at[2] == '.')) {
		double found = hexadecimal(at + 2, end);
		return negative ? -found : found;
	}
	for (; (*at >= '0' && *at <= '9') || (*at == '.' && !(any & 2)); at++) {
		if (*at == '.') {
			any |= 2;
			continue;
		}
		if (digits < 1000000000000000000ULL) {
			digits = digits * 10 + *at - '0';
			places -= any & 2 ? 1 : 0;
		} else {
			places += any & 2 ? 0 : 1;
		}
		any |= 1;
	}
	if (any & 1 && (*at | 32) == 'e') {
		const char *sign = at + 1 + (at[1] == '-' || at[1] == '+');
		if (*sign >= '0' && *sign <= '9') {
			for (exponent = 0; *sign >= '0' && *sign <= '9'; sign++)
				exponent = exponent < 10000 ? exponent * 10 + *sign - '0' : exponent;
			if (at[1] == '-')
				exponent = -exponent;
			at = sign;
		}
	}
	if (end)
		*end = (char *)(any & 1 ? at : text);
	places += exponent;
	value = digits;
	if (digits && places) {
		long double factor = 10, power = 1;
		int n = places < 0 ? -places : places;
		if (n > 5000)
			n = 5000;
		for (; n; n >>= 1, factor *= factor)
			if (n & 1)
				power *= factor;
		value = places < 0 ? value / power : value * power;
	}
	return negative ? -value : value;
}

float strtof(const char *text, char **end) { return strtod(text, end); }
double atof(const char *text) { return strtod(text, 0); }

int abs(int x) { return x < 0 ? -x : x; }
long labs(long x) { return x < 0 ? -x : x; }
long long llabs(long long x) { return x < 0 ? -x : x; }
div_t div(int a, int b) { return (div_t){ a / b, a % b }; }
ldiv_t ldiv(long a, long b) { return (ldiv_t){ a / b, a % b }; }

static void swap(char *a, char *b, size_t size)
{
	for (; size--; a++, b++) {
		char kept = *a;
		*a = *b;
		*b = kept;
	}
}

/* A heap: no recursion, and no more stack than a few words. */
void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *))
{
	char *all = base;
	size_t start = count / 2, end = count;
	while (end > 1) {
		size_t root, child;
		if (start > 0)
			start--;
		else
			swap(all, all + --end * size, size);
		for (root = start; (child = 2 * root + 1) < end; root = child) {
			if (child + 1 < end && compare(all + child * size, all + (child + 1) * size) < 0)
				child++;
			if (compare(all + root * size, all + child * size) >= 0)
				break;
			swap(all + root * size, all + child * size, size);
		}
	}
}

void *bsearch(const void *key, const void *base, size_t count, size_t size,
	      int (*compare)(const void *, const void *))
{
	const char *from = base;
	while (count > 0) {
		const char *middle = from + count / 2 * size;
		int order = compare(key, middle);
		if (order == 0)
			return (void *)middle;
		if (order > 0) {
			from = middle + size;
			count--;
		}
		count /= 2;
	}
	return 0;
}

/* A linear congruence of 64 bits, as the time's libraries had; 31 bits are given out. */
static unsigned long long seed = 1;
int rand(void)
{
	seed = seed * 6364136223846793005ULL + 1;
	return seed >> 33;
}
void srand(unsigned int x) { seed = x; }
long random(void) { return rand(); }
void srandom(unsigned int x) { srand(x); }
int rand_r(unsigned int *state)
{
	unsigned long long next = *state * 6364136223846793005ULL + 1442695040888963407ULL;
	*state = next >> 32;
	return next >> 33;
}

char *getenv(const char *name) { return 0; }

int isspace(int c) { return blank(c); }
int isdigit(int c) { return c >= '0' && c <= '9'; }
int isupper(int c) { return c >= 'A' && c <= 'Z'; }
int islower(int c) { return c >= 'a' && c <= 'z'; }
int isalpha(int c) { return isupper(c) || islower(c); }
int isalnum(int c) { return isalpha(c) || isdigit(c); }
int isxdigit(int c) { return digit_of(c) < 16; }
int isprint(int c) { return c >= 32 && c < 127; }
int isgraph(int c) { return c > 32 && c < 127; }
int iscntrl(int c) { return c < 32 || c == 127; }
int ispunct(int c) { return isgraph(c) && !isalnum(c); }
int isblank(int c) { return c == ' ' || c == 9; }
int isascii(int c) { return c >= 0 && c < 128; }
int toupper(int c) { return islower(c) ? c - 32 : c; }
int tolower(int c) { return isupper(c) ? c + 32 : c; }

void __assert_fail(const char *text, const char *file, unsigned int line, const char *function)
{
	fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, text);
	abort();
}
void __assert(const char *text, const char *file, int line) { __assert_fail(text, file, line, "?"); }

/* C++. */
extern void *memalign(size_t, size_t);
void __cxa_pure_virtual(void) { abort(); }
/* What the templates of C++'s library call where they would throw. */
__attribute__((noreturn)) static void no_exceptions(void)
{
	fprintf(stderr, "an exception of the C++ library ends the program: there are none here\n");
	abort();
}
#define THROWS(name) __attribute__((noreturn)) void name(void) { no_exceptions(); }
THROWS(_ZSt17__throw_bad_allocv)
THROWS(_ZSt28__throw_bad_array_new_lengthv)
THROWS(_ZSt20__throw_length_errorPKc)
THROWS(_ZSt19__throw_logic_errorPKc)
THROWS(_ZSt20__throw_out_of_rangePKc)
THROWS(_ZSt24__throw_out_of_range_fmtPKcz)
THROWS(_ZSt24__throw_invalid_argumentPKc)
THROWS(_ZSt25__throw_bad_function_callv)

void *_Znwj(size_t bytes) { return malloc(bytes); }
void *_Znaj(size_t bytes) { return malloc(bytes); }
void *_Znwm(size_t bytes) { return malloc(bytes); }
void *_Znam(size_t bytes) { return malloc(bytes); }
void _ZdlPv(void *memory) { free(memory); }
void _ZdaPv(void *memory) { free(memory); }
void _ZdlPvj(void *memory, size_t bytes) { free(memory); }
void _ZdaPvj(void *memory, size_t bytes) { free(memory); }
/* Of types whose alignment is beyond malloc's. */
void *_ZnwjSt11align_val_t(size_t bytes, size_t alignment) { return memalign(alignment, bytes); }
void *_ZnajSt11align_val_t(size_t bytes, size_t alignment) { return memalign(alignment, bytes); }
void _ZdlPvSt11align_val_t(void *memory, size_t alignment) { free(memory); }
void _ZdaPvSt11align_val_t(void *memory, size_t alignment) { free(memory); }
void _ZdlPvjSt11align_val_t(void *memory, size_t bytes, size_t alignment) { free(memory); }
void _ZdaPvjSt11align_val_t(void *memory, size_t bytes, size_t alignment) { free(memory); }

/* What a long jump brings back: rbx, rbp, r12 to r15, rsp, and the address behind the call. */
__asm__(".text\n"
	".globl setjmp, _setjmp, __sigsetjmp\n"
	"setjmp:\n_setjmp:\n__sigsetjmp:\n"
	"movq %rbx, (%rdi)\n movq %rbp, 8(%rdi)\n movq %r12, 16(%rdi)\n movq %r13, 24(%rdi)\n"
	"movq %r14, 32(%rdi)\n movq %r15, 40(%rdi)\n leaq 8(%rsp), %rax\n movq %rax, 48(%rdi)\n"
	"movq (%rsp), %rax\n movq %rax, 56(%rdi)\n xorl %eax, %eax\n ret\n"
	".globl longjmp, _longjmp, siglongjmp\n"
	"longjmp:\n_longjmp:\nsiglongjmp:\n"
	"movl %esi, %eax\n testl %eax, %eax\n jnz 1f\n incl %eax\n1:\n"
	"movq (%rdi), %rbx\n movq 8(%rdi), %rbp\n movq 16(%rdi), %r12\n movq 24(%rdi), %r13\n"
	"movq 32(%rdi), %r14\n movq 40(%rdi), %r15\n movq 48(%rdi), %rsp\n jmp *56(%rdi)\n");

/* Names that newer headers give these functions. */
__asm__(".globl __isoc23_strtol, __isoc23_strtoul, __isoc23_strtoll, __isoc23_strtoull\n"
	".set __isoc23_strtol, strtol\n"
	".set __isoc23_strtoul, strtoul\n"
	".set __isoc23_strtoll, strtoll\n"
	".set __isoc23_strtoull, strtoull\n");

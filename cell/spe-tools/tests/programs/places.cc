/* Pointers from places in the store in C++; each check prints its name where it does not hold. */
#include <spu_mfcio.h>
#include <stdint.h>
#include <stdio.h>

struct part {
	unsigned int bits : 20;
	int *pointer;
};
enum place { third = 0x38008 };
template <class T> T *at(unsigned int n) { return reinterpret_cast<T *>(n); }
template <class T> unsigned int of(T *p) { return reinterpret_cast<uintptr_t>(p); }
class holder {
	int number;

public:
	holder(int n) : number(n) {}
	operator int *() const { return (int *)(0x38000 + 4 * number); }
	int *self() { return (int *)this; }
};

static int next(int n) { return n + 1; }
static int bad;
static void check(const char *name, bool holds)
{
	if (!holds) {
		printf("%s\n", name);
		bad++;
	}
}

int main()
{
	unsigned int base = spu_read_in_mbox();
	int array[4] = { 1, 2, 3, 4 };
	part s = { base, 0 };
	for (int i = 0; i < 8; i++)
		*at<int>(base + 4 * i) = 7 + i;
	check("template", *(int *)base == 7 && of(at<char>(base)) == base);
	check("bits", *(int *)s.bits == 7 && (unsigned int)s.bits == base);
	check("enumeration", *(int *)(int)third == 9);
	check("class", *(int *)holder(3) == 10 && *holder(5).self() == 5);
	check("array", *reinterpret_cast<short *>(array) == 1 && *(int *)array == 1);
	check("number", (unsigned int)array < 0x40000 && (unsigned int)&array[1] - (unsigned int)array == 4);
	check("function", ((int (*)(int))next)(1) == 2 && (void *)next != 0);
	check("null", (int *)0 == nullptr && reinterpret_cast<int *>(s.bits - base) == 0);
	check("qualified", *(const volatile int *)base == 7 && *const_cast<int *>((volatile int *)base) == 7);
	check("compared", (char *)base < (char *)(base + 1));
	check("wide", *(int *)(unsigned long long)base == 7 && *(int *)(long)base == 7);
	return bad;
}

// What SPU programs of the time use of C++'s library: its templates, which need no code of it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <vector>
#include <spu_intrinsics.h>

typedef unsigned int word;
typedef word wide;
extern unsigned int _end;

struct more {
	bool operator()(int a, int b) const throw() { return a > b; }
};

// Named by nothing: a host would look for the section.
static const int table[2] __attribute__((used, section(".table.of.host"))) = { 7, 9 };

int main()
{
	std::vector<int> all;
	for (register int i = 0; i < 20; i++)
		all.push_back(i * 7 % 20);
	std::sort(all.begin(), all.end(), more());
	char room[16];
	int *placed = new (room) int(5);
	std::swap(*placed, all[1]);
	__vector wide words = spu_splats((word)3);
	words = spu_add(words, (__vector wide){ 1, 2, 3, 4 });
	unsigned int left = 0x40000 - (unsigned int)(&_end);
	std::printf("%d %d %d %u %d %g\n", all[0], all[1], *placed, (unsigned)spu_extract(words, 3),
		left > 100000 && left < 0x40000, std::sqrt(6.25f));
	return std::numeric_limits<char>::is_signed;
}

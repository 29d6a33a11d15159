/* Vectors printed by their elements. */
#include <spu_intrinsics.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	vector signed int words = { -1, 2, 30000, 4 };
	vector unsigned int large = { 0xffffffff, 10, 0, 1 };
	vector signed short halves = { -1, 2, -3, 4, -5, 6, -7, 8 };
	vector unsigned char bytes = { 'c', 'e', 'l', 'l', ' ', 't', 'e', 'x', 't', 1, 2, 3, 4, 253, 254, 255 };
	vector float floats = { 1.5f, -0.25f, 100, 0 };
	vector double doubles = { 0.1, -2 };
	vector signed long long wide = { -5000000000LL, 7 };
	char text[256];
	int taken;

	printf("%vld|%lvd|%8vld|%-4vld|\n", words, words, words, words);
	printf("%vlu|%,vlx|%#vlX|%;08vlx\n", large, large, large, large);
	printf("%vhd|%:+hvd|%vhu\n", halves, halves, halves);
	printf("%vu|%vd|%_vx\n", bytes, bytes, bytes);
	printf("%vf|%,.2vf|%7.1ve|%vG\n", floats, floats, floats, floats);
	printf("%vvf|%.0vlf|%vlld|%vllx\n", doubles, doubles, wide, wide);
	/* Beside others, of which more than registers hold. */
	taken = sprintf(text, "%d %.3vc %s %vld %g %vf %vld %vld %vld %vld %vld %vld %vld %d", 1, bytes, "a", words,
			0.5, floats, words, words, words, words, words, words, large, 9);
	printf("%d %d\n", taken == (int)strlen(text), memcmp(text, "1 cell text\1\2\3\4", 15));
	puts(text + 19);
	return 0;
}

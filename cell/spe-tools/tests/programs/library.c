/* The library, each line beside what the test wants. */
#include <ctype.h>
#include <libmisc.h>
#include <massv.h>
#include <math.h>
#include <setjmp.h>
#include <simdmath.h>
#include <simdmath/sinf4.h>
#include <spu_mfcio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

static char line[128] __attribute__((aligned(128)));

/* A program may have names of the host's libraries itself. */
typedef void *pthread_t;

static void calendar(void)
{
	unsigned short parts[3] = {1, 2, 3};
	time_t when = 1234567890;
	char text[64], words[] = "a,b", *rest = words, *first;
	pthread_t none = 0;
	strftime(text, sizeof text, "%c|%j|%p", gmtime(&when));
	first = strsep(&rest, ",");
	srand48(5);
	printf("%s %s", text, ctime(&when));
	printf("%f %ld %f %s %s %d\n", drand48(), mrand48(), erand48(parts), first, rest, none == 0);
}

int main(unsigned long long id, unsigned long long argp, unsigned long long envp)
{
	int numbers[7] = { 5, 3, 9, 1, 7, 2, 8 }, n, count = 2;
	unsigned int u;
	float roots[2], squares[2] = { 9, 16 };
	double d;
	char word[16];
	void *first, *second;
	jmp_buf place;

	printf("%llu %llu %d %d %u\n", id, envp, (int)sizeof(void *), (int)sizeof(long), (char)-1);
	qsort(numbers, 7, sizeof(int), compare);
	for (n = 0; n < 7; n++)
		printf("%d ", numbers[n]);
	puts("");
	printf("%.17g %.3f %10.4e %g %g %g\n", 0.1, 2.5, 1e300, 1e100, 123456789.0, 5e-324);
	printf("%.0f %.0f %.1f %f %s\n", 0.5, 1.5, 0.25, 1e22, "text");
	printf("%lld %#x %o %c %5s|%-5s|%05d %+d\n", -1234567890123LL, 255, 8, 'x', "ab", "cd", -42, 7);
	n = sscanf("42 3.25 hello 0x1f", "%d %lf %s %x", &numbers[0], &d, word, &u);
	printf("%d %d %g %s %u\n", n, numbers[0], d, word, u);
	printf("%.14g %.14g %.14g %.14g\n", sin(1.0), exp(1.0), pow(2.0, 0.5), atan2(1, 2));
	printf("%.14g %.14g %.14g %.14g\n", log(10.0), tan(1e6), tgamma(5.0), cbrt(27.0));
	vssqrt(roots, squares, &count);
	printf("%g %g %.6f\n", roots[0], roots[1], spu_extract(sinf4(spu_splats(1.0f)), 3));
	first = malloc(1000);
	second = _malloc_align(256, 7);
	printf("%d %d\n", (int)((unsigned int)first & 15), (int)((unsigned int)second & 127));
	free(first);
	_free_align(second);
	first = malloc(180000);
	second = malloc(180000);
	printf("%d %d\n", first != 0, second != 0);
	if (!setjmp(place))
		longjmp(place, 3);
	printf("%d %c %s\n", isdigit('3') != 0, toupper('a'), strtok(strdup("a,b"), ","));
	calendar();
	mfc_get(line, argp, 128, 3, 0, 0);
	mfc_write_tag_mask(1 << 3);
	printf("%u %d\n", mfc_read_tag_status_all(), line[5]);
	spu_write_out_mbox(spu_read_in_mbox() + 1);
	return 5;
}

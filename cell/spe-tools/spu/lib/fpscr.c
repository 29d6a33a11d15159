/* The register of floats' rounding and exceptions: what programs wrote into it. Rounding of doubles to whole
 * numbers goes by it; sums, products and exceptions do not.
 */
#include <math.h>
#include <spu_intrinsics.h>

vec_uint4 __sidecore_fpscr;

/* A double as a whole number, by the rounding of its slice: to the nearest, to zero, up, down. */
double __sidecore_rounded(double x, int slice)
{
	switch (__sidecore_fpscr[0] >> (10 - 2 * slice) & 3) {
	case 1:
		return trunc(x);
	case 2:
		return ceil(x);
	case 3:
		return floor(x);
	default:
		return rint(x);
	}
}

/* The SDK's libraries of small functions; the exit status is the number of checks that fail. */
#include <libgmath.h>
#include <liblarge_matrix.h>
#include <libmatrix.h>
#include <libmisc.h>
#include <libsim.h>
#include <libsync.h>
#include <libvector.h>
#include <math.h>
#include <profile.h>
#include <stdio.h>
#include <vec_literal.h>
#ifdef __SPU__
#include <spu_mfcio.h>
#include <spu_timer.h>
#endif

static int bad;
static void check(const char *name, int holds)
{
	if (!holds) {
		sim_printf("%s\n", name);
		bad++;
	}
}

static int near(float a, float b) { return fabsf(a - b) < 1e-5f; }
static int alike(vector float a, float x, float y, float z, float w)
{
	return near(a[0], x) && near(a[1], y) && near(a[2], z) && near(a[3], w);
}

#include <simdmath.h>
#include <vec_types.h>

static void numbers(void)
{
	vec_float4 zero = VEC_SPLAT_F32(0.0f), one = VEC_SPLAT_F32(1.0f), two = VEC_SPLAT_F32(2.0f);
	vec_float4 mixed = load_vec_float4(-2.5f, 9, 1e10f, -7.5f);
	vec_int4 quotient;
	llroundf4_t rounded = llroundf4(mixed);
	check("clamp", clamp_v(mixed, zero, two)[3] == 0 && clamp_v(mixed, zero, two)[1] == 2);
	check("clamp one", clamp_0_to_1(-1) == 0 && clamp_minus1_to_1(-0.5f) == -0.5f);
	check("greatest", max_vec_float4(mixed) == 1e10f && min_vec_float3(mixed) == -2.5f);
	check("rounded", rounded.vll[1][0] == 10000000000LL && rounded.vll[0][0] == -3);
	check("beside", nextafterf4(one, two)[0] > 1 && nextafterf4(one, two)[0] - 1 < 2e-7f);
	check("remainder", remquof4(mixed, two, &quotient)[3] == 0.5f && quotient[3] == -4);
	check("classes", fpclassifyf4(zero)[0] == FP_ZERO && logbf4(mixed)[3] == 2);
#ifdef __SPU__
	check("no infinity", spu_re(zero)[0] * 0.0f == 0 && spu_rsqrte(zero)[1] * 0.0f == 0);
	check("no infinity by functions", divf4(mixed, zero)[0] < -3e38f && recipf4(zero)[2] > 3e38f
	      && divf4(zero, zero)[1] == 0 && rsqrtf4(zero)[1] * 0.0f == 0);
#endif
	check("scaled", scalbnf4(mixed, load_vec_int4(1, 2, 0, 0))[1] == 36);
}

#ifndef __cplusplus
static void large(void)
{
	float a[16] = { 2, 1, 1, 0, 4, 3, 3, 1, 8, 7, 9, 5, 6, 7, 9, 8 }, b[4] = { 4, 11, 29, 30 };
	float turned[16], product[16] = { 0 };
	int order[4], i;
	transpose_matrix(4, 4, a, 4, turned, 4);
	madd_matrix_matrix(4, 4, 4, a, 4, turned, 4, product, 4);
	check("turned", turned[4] == 1 && turned[3] == 6 && product[1] == 2 * 4 + 3 + 3);
	check("largest", index_max_abs_col(4, a, 0, 4) == 2 && index_max_abs_vec(4, a + 4) == 0);
	check("solved", solve_linear_system_1(4, a, 4, order, b) == 0);
	for (i = 0; i < 4; i++)
		check("all ones", near(b[i], 1));
	check("singular", lu2_decomp(2, 2, product + 12, 0, order) == -4);
}
#endif

static void vectors(void)
{
	vector float a = load_vec_float4(1, 2, 3, 4), b = load_vec_float4(-2, 0.5f, 1, 2), x, y, z;
	vector float up = load_vec_float4(0, 1, 0, 0);
	check("dot", near(dot_product3(a, b), 2) && near(dot_product4(a, b), 10));
	check("cross", alike(cross_product3(a, b), 0.5f, -7, 4.5f, 0));
	check("cross4", near(cross_product4(a, b)[3], 8));
	check("length", near(length_vec3(load_vec_float4(2, 3, 6, 100)), 7));
	check("inverse length", near(inv_length_vec3(load_vec_float4(2, 3, 6, 100)), 1 / 7.0f));
	check("normalize", alike(normalize3(load_vec_float4(3, 0, 4, 0)), 0.6f, 0, 0.8f, 0));
	check("normalize4", alike(normalize4(load_vec_float4(1, 1, 1, 1)), 0.5f, 0.5f, 0.5f, 0.5f));
	check("lerp", alike(lerp_vec(a, b, load_vec_float4(0.5f, 0, 1, 0.5f)), -0.5f, 2, 1, 3));
	check("reflect", alike(reflect_vec3(load_vec_float4(1, -1, 2, 0), up), 1, 1, 2, 0));
	check("sums", near(sum_across_float3(a), 6) && near(sum_across_float4(a), 10));
	check("integers", load_vec_int4(5, 6, 7, 8)[2] == 7);
	cross_product3_v(&x, &y, &z, a, a, b, b, a, a);
	check("cross of four", near(x[1], 2 * 2 - 0.5f * 2) && near(z[0], 1 * 1 - 1 * -2));
	normalize3_v(&x, &y, &z, a, a, a);
	check("normalize of four", near(x[3], 1 / sqrtf(3)));
	reflect_vec3_v(&x, &y, &z, a, b, a, up, up, up);
	check("reflect of four", near(y[1], 0.5f - 2 * (2 + 0.5f + 2)));
	check("sines", near(sin8(0.5f), 0.4794255f) && alike(cos18_v(VEC_SPLAT_F32(0.0f)), 1, 1, 1, 1));
	x = rand_minus1_to_1_v();
	check("random", x[0] >= -1 && x[3] <= 1 && x[0] != x[1] && rand_0_to_1_v()[2] >= 0);
	check("literals", alike(VEC_LITERAL(vec_float4, 1, 2, 3, 4), 1, 2, 3, 4));
	check("length of four", near(length_vec3_v(a, a, a)[1], sqrtf(12)));
}

static void matrices(void)
{
	vector float own[4], other[4], product[4], all[16], back;
	vector float axis = load_vec_float4(0, 0, 1, 0), point = load_vec_float4(1, 2, 3, 1);
	float half = 3.14159265f / 2;
	int column;
	identity_matrix4x4(own);
	check("identity", alike(xform_vec4(point, own), 1, 2, 3, 1));
	rotate_matrix4x4(own, axis, half);
	check("rotation", alike(xform_vec4(point, own), -2, 1, 3, 1));
	own[3] = load_vec_float4(10, 20, 30, 1);
	check("point", alike(xform_vec3(point, own), 8, 21, 33, 1));
	check("direction", alike(xform_norm3(point, own), -2, 1, 3, 0));
	scale_matrix4x4(other, own, load_vec_float4(2, 3, 4, 1));
	inverse_matrix4x4(product, other);
	mult_matrix4x4(product, other, product);
	for (column = 0; column < 4; column++)
		check("inverse", alike(product[column], column == 0, column == 1, column == 2, column == 3));
	transpose_matrix4x4(product, own);
	check("transpose", near(product[0][3], 10) && near(product[2][3], 30));
	splat_matrix4x4(all, own);
	check("splat", alike(all[13], 20, 20, 20, 20));
	quat_to_rot_matrix4x4(other, load_vec_float4(0, 0, sinf(half / 2), cosf(half / 2)));
	check("quaternion", alike(other[0], 0, 1, 0, 0) && alike(other[1], -1, 0, 0, 0));
	back = load_vec_float4(0, 0, sinf(half / 2), cosf(half / 2));
	check("quaternions", alike(mult_quat(back, back), 0, 0, 1, 0));
	check("quaternion of a rotation", near(rot_matrix4x4_to_quat(other)[2], sinf(half / 2)));
	check("half way", near(slerp_quat(back, load_vec_float4(0, 0, 0, 1), 0.5f)[3], cosf(half / 4)));
	xform_vec4_v(&all[0], &all[1], &all[2], &all[3], load_vec_float4(1, 0, 0, 0), load_vec_float4(0, 1, 0, 0),
		     load_vec_float4(0, 0, 1, 0), load_vec_float4(0, 0, 0, 1), all);
	perspective_matrix4x4(own, half, 2, 1, 3);
	check("perspective", near(own[0][0], 0.5f) && near(own[1][1], 1) && near(own[2][2], -2)
		&& near(own[2][3], -1) && near(own[3][2], -3));
	ortho_matrix4x4(own, -2, 2, -1, 1, 1, 3);
	check("ortho", near(own[0][0], 0.5f) && near(own[2][2], -1) && near(own[3][2], -2));
	frustum_matrix4x4(own, -1, 3, -1, 1, 1, 2);
	check("frustum", near(own[2][0], 0.5f) && near(own[0][0], 0.5f));
}

static void variables(eaddr_t line)
{
	eaddr_t word = line + 20;
	atomic_set(word, 5);
	check("returns", atomic_add_return(3, word) == 5 && atomic_read(word) == 8);
	atomic_sub(2, word);
	atomic_inc(word);
	check("counts", atomic_dec_return(word) == 7 && atomic_read(word) == 6);
	/* The value before is compared with 0. */
	check("tests", !atomic_dec_and_test(word) && !atomic_sub_and_test(5, word));
	check("tests of 0", atomic_sub_and_test(1, word) && atomic_read(word) == -1);
	atomic_set(word, 0);
	check("not below", atomic_dec_if_positive(word) == -1 && atomic_read(word) == 0);
	mutex_init(word);
	mutex_lock(word);
	check("locked", !mutex_trylock(word));
	mutex_unlock(word);
	check("unlocked", mutex_trylock(word));
	cond_init(word);
	cond_signal(word);
	check("nobody waits", atomic_read(word) == 0);
	atomic_set(word, 3);
	cond_signal(word);
	check("one of three", atomic_read(word) == 0x10003);
	cond_broadcast(word);
	check("all of three", atomic_read(word) == 0x30003);
	init_completion(word);
	complete(word);
	wait_for_completion(word);
	check("completed", atomic_read(word) == 0);
	read_lock(word);
	check("two readers", read_trylock(word) && !write_trylock(word));
	read_unlock(word);
	read_unlock(word);
	write_lock(word);
	check("a writer", !read_trylock(word));
	write_unlock(word);
	check("free", atomic_read(word) == 0);
}

#ifdef __SPU__
static int rang;
static void ring(int id)
{
	rang += id + 1;
}

static void timers(void)
{
	int first, second;
	uint64_t before;
	check("no clock", spu_clock_stop() == SPU_CLOCK_ERR_NOT_RUNNING);
	spu_slih_register(MFC_DECREMENTER_EVENT, spu_clock_slih);
	check("short", spu_timer_alloc(10, ring) == SPU_TIMER_ERR_INVALID_PARM);
	first = spu_timer_alloc(2500, ring);
	second = spu_timer_alloc(1000000, ring);
	check("allocated", first == 0 && second == 1);
	check("needs a clock", spu_timer_start(first) == SPU_TIMER_ERR_NOCLOCK);
	spu_clock_start();
	/* Each look at the decrementer is a thousand ticks later. */
	before = spu_clock_read();
	check("counts up", spu_clock_read() == before + 1000);
	check("started", spu_timer_start(first) == 0 && spu_timer_start(second) == 0);
	spu_clock_read();
	spu_clock_read();
	check("once", rang == 1);
	spu_clock_read();
	spu_clock_read();
	spu_clock_read();
	check("again", rang == 2);
	check("active", spu_clock_stop() == SPU_CLOCK_ERR_TIMERS_ACTIVE);
	check("not free", spu_timer_free(first) == SPU_TIMER_ERR_ACTIVE);
	check("stopped", spu_timer_stop(first) == 0 && spu_timer_stop(second) == 0);
	check("freed", spu_timer_free(first) == 0 && spu_timer_free(first) == SPU_TIMER_ERR_FREE);
	check("over", spu_clock_stop() == 0 && spu_timebase() == 79800000);
}
#endif

#ifdef __SPU__
int main(unsigned long long id, unsigned long long argp)
{
	(void)id;
	timers();
	variables((argp + 127) & ~127ULL);
#else
int main(void)
{
	static int line[32] __attribute__((aligned(128)));
	variables((eaddr_t)(unsigned long)line);
#endif
	prof_cp30();
	vectors();
	numbers();
	matrices();
#ifndef __cplusplus
	large();
#endif
	prof_cp31();
	return bad;
}

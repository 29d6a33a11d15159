/* Vectors of three and four elements, matrices of four by four and quaternions: the functions of the
 * SDK's libvector and libmatrix.
 *
 * A matrix is four vectors, the columns: its product with a vector is the sum of the columns, each times
 * an element. Functions that end in _v take four vectors at once, an array for each coordinate.
 */
#ifndef SIDECORE_MATRIX_H
#define SIDECORE_MATRIX_H
#include <sidecore_begin.h>

#include <math.h>
#include <sidecore_vector_names.h>
/* Programs count on it. */
#ifdef __SPU__
#include <spu_intrinsics.h>
#else
#include <altivec.h>
#endif

#define __SDK_INLINE static __inline__ __attribute__((unused))

__SDK_INLINE vec_float4 __sdk_of(float x, float y, float z, float w)
{
	vec_float4 v = { x, y, z, w };
	return v;
}
__SDK_INLINE vec_float4 __sdk_all(float x) { return __sdk_of(x, x, x, x); }
__SDK_INLINE vec_float4 __sdk_sqrt(vec_float4 v)
{
	return __sdk_of(sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3]));
}

/* libvector. */

__SDK_INLINE vec_float4 _load_vec_float4(float a, float b, float c, float d) { return __sdk_of(a, b, c, d); }
__SDK_INLINE vec_int4 _load_vec_int4(int a, int b, int c, int d)
{
	vec_int4 v = { a, b, c, d };
	return v;
}
__SDK_INLINE float _sum_across_float3(vec_float4 v) { return v[0] + v[1] + v[2]; }
__SDK_INLINE float _sum_across_float4(vec_float4 v) { return v[0] + v[1] + v[2] + v[3]; }
__SDK_INLINE float _dot_product3(vec_float4 a, vec_float4 b) { return _sum_across_float3(a * b); }
__SDK_INLINE float _dot_product4(vec_float4 a, vec_float4 b) { return _sum_across_float4(a * b); }
__SDK_INLINE vec_float4 _dot_product3_v(vec_float4 x1, vec_float4 y1, vec_float4 z1, vec_float4 x2,
	vec_float4 y2, vec_float4 z2)
{
	return x1 * x2 + y1 * y2 + z1 * z2;
}
__SDK_INLINE vec_float4 _dot_product4_v(vec_float4 x1, vec_float4 y1, vec_float4 z1, vec_float4 w1,
	vec_float4 x2, vec_float4 y2, vec_float4 z2, vec_float4 w2)
{
	return x1 * x2 + y1 * y2 + z1 * z2 + w1 * w2;
}
__SDK_INLINE void _cross_product3_v(vec_float4 *x, vec_float4 *y, vec_float4 *z, vec_float4 x1,
	vec_float4 y1, vec_float4 z1, vec_float4 x2, vec_float4 y2, vec_float4 z2)
{
	*x = y1 * z2 - z1 * y2;
	*y = z1 * x2 - x1 * z2;
	*z = x1 * y2 - y1 * x2;
}
__SDK_INLINE vec_float4 _cross_product3(vec_float4 a, vec_float4 b)
{
	return __sdk_of(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0], 0);
}
/* Homogeneous vectors: the fourth elements are multiplied. */
__SDK_INLINE vec_float4 _cross_product4(vec_float4 a, vec_float4 b)
{
	vec_float4 product = _cross_product3(a, b);
	product[3] = a[3] * b[3];
	return product;
}
__SDK_INLINE float _length_vec3(vec_float4 v) { return sqrtf(_dot_product3(v, v)); }
__SDK_INLINE vec_float4 _length_vec3_v(vec_float4 x, vec_float4 y, vec_float4 z)
{
	return __sdk_sqrt(_dot_product3_v(x, y, z, x, y, z));
}
__SDK_INLINE float _inv_length_vec3(vec_float4 v) { return 1.0f / _length_vec3(v); }
__SDK_INLINE vec_float4 _inv_length_vec3_v(vec_float4 x, vec_float4 y, vec_float4 z)
{
	return __sdk_all(1.0f) / _length_vec3_v(x, y, z);
}
__SDK_INLINE vec_float4 _normalize3(vec_float4 v) { return v * __sdk_all(_inv_length_vec3(v)); }
__SDK_INLINE void _normalize3_v(vec_float4 *x, vec_float4 *y, vec_float4 *z, vec_float4 x1, vec_float4 y1,
	vec_float4 z1)
{
	vec_float4 scale = _inv_length_vec3_v(x1, y1, z1);
	*x = x1 * scale;
	*y = y1 * scale;
	*z = z1 * scale;
}
__SDK_INLINE vec_float4 _normalize4(vec_float4 v)
{
	return v * __sdk_all(1.0f / sqrtf(_dot_product4(v, v)));
}
__SDK_INLINE vec_float4 _lerp_vec(vec_float4 a, vec_float4 b, vec_float4 part) { return a + part * (b - a); }
/* The part of a vector along a normal of length 1 changes its sign. */
__SDK_INLINE vec_float4 _reflect_vec3(vec_float4 v, vec_float4 normal)
{
	return v - normal * __sdk_all(2.0f * _dot_product3(v, normal));
}
__SDK_INLINE void _reflect_vec3_v(vec_float4 *x, vec_float4 *y, vec_float4 *z, vec_float4 vx, vec_float4 vy,
	vec_float4 vz, vec_float4 nx, vec_float4 ny, vec_float4 nz)
{
	vec_float4 twice = _dot_product3_v(vx, vy, vz, nx, ny, nz) * __sdk_all(2.0f);
	*x = vx - twice * nx;
	*y = vy - twice * ny;
	*z = vz - twice * nz;
}
__SDK_INLINE vec_float4 _xform_vec4(vec_float4 v, const vec_float4 *matrix)
{
	return matrix[0] * __sdk_all(v[0]) + matrix[1] * __sdk_all(v[1]) + matrix[2] * __sdk_all(v[2])
		+ matrix[3] * __sdk_all(v[3]);
}
/* A point: its fourth element counts as 1. */
__SDK_INLINE vec_float4 _xform_vec3(vec_float4 v, const vec_float4 *matrix)
{
	return _xform_vec4(__sdk_of(v[0], v[1], v[2], 1.0f), matrix);
}
/* A direction: its fourth element counts as 0. */
__SDK_INLINE vec_float4 _xform_norm3(vec_float4 v, const vec_float4 *matrix)
{
	return _xform_vec4(__sdk_of(v[0], v[1], v[2], 0.0f), matrix);
}

/* The same of four vectors at once, by a matrix whose entries are vectors each (splat_matrix4x4). */
#define __SDK_ENTRY(m, i, x, y, z) ((x) * (m)[i] + (y) * (m)[4 + (i)] + (z) * (m)[8 + (i)])
__SDK_INLINE void _xform_norm3_v(vec_float4 *xout, vec_float4 *yout, vec_float4 *zout, vec_float4 x,
	vec_float4 y, vec_float4 z, const vec_float4 *m)
{
	*xout = __SDK_ENTRY(m, 0, x, y, z);
	*yout = __SDK_ENTRY(m, 1, x, y, z);
	*zout = __SDK_ENTRY(m, 2, x, y, z);
}
__SDK_INLINE void _xform_vec4_v(vec_float4 *xout, vec_float4 *yout, vec_float4 *zout, vec_float4 *wout,
	vec_float4 x, vec_float4 y, vec_float4 z, vec_float4 w, const vec_float4 *m)
{
	*xout = __SDK_ENTRY(m, 0, x, y, z) + w * m[12];
	*yout = __SDK_ENTRY(m, 1, x, y, z) + w * m[13];
	*zout = __SDK_ENTRY(m, 2, x, y, z) + w * m[14];
	*wout = __SDK_ENTRY(m, 3, x, y, z) + w * m[15];
}
__SDK_INLINE void _xform_vec3_v(vec_float4 *xout, vec_float4 *yout, vec_float4 *zout, vec_float4 *wout,
	vec_float4 x, vec_float4 y, vec_float4 z, const vec_float4 *m)
{
	_xform_vec4_v(xout, yout, zout, wout, x, y, z, __sdk_all(1.0f), m);
}
/* The sides of the volume of normalized coordinates that a vertex lies beyond. */
#define CLIP_CODE_LEFT 0x01
#define CLIP_CODE_RIGHT 0x02
#define CLIP_CODE_BOTTOM 0x04
#define CLIP_CODE_TOP 0x08
#define CLIP_CODE_NEAR 0x10
#define CLIP_CODE_FAR 0x20
__SDK_INLINE unsigned int _clipcode_ndc(vec_float4 v)
{
	unsigned int code = 0;
	int axis;
	for (axis = 0; axis < 3; axis++) {
		code |= v[axis] < -v[3] ? CLIP_CODE_LEFT << 2 * axis : 0;
		code |= v[axis] > v[3] ? CLIP_CODE_RIGHT << 2 * axis : 0;
	}
	return code;
}
__SDK_INLINE vec_uint4 _clipcode_ndc_v(vec_float4 x, vec_float4 y, vec_float4 z, vec_float4 w)
{
	vec_uint4 codes = { 0, 0, 0, 0 };
	int i;
	for (i = 0; i < 4; i++)
		codes[i] = _clipcode_ndc(__sdk_of(x[i], y[i], z[i], w[i]));
	return codes;
}
/* Where the ray from v1 (0) to v2 (1) meets a plane. */
__SDK_INLINE vec_float4 _clip_ray(vec_float4 v1, vec_float4 v2, vec_float4 plane)
{
	float first = _dot_product4(v1, plane), second = _dot_product4(v2, plane);
	return __sdk_all(first / (first - second));
}

/* libmatrix; an output may be an input. */

__SDK_INLINE void _identity_matrix4x4(vec_float4 *out)
{
	int column;
	for (column = 0; column < 4; column++) {
		out[column] = __sdk_all(0.0f);
		out[column][column] = 1.0f;
	}
}
__SDK_INLINE void __matrix_copy(vec_float4 *out, const vec_float4 *in)
{
	int column;
	for (column = 0; column < 4; column++)
		out[column] = in[column];
}
__SDK_INLINE void _transpose_matrix4x4(vec_float4 *out, const vec_float4 *in)
{
	vec_float4 result[4];
	int column, row;
	for (column = 0; column < 4; column++)
		for (row = 0; row < 4; row++)
			result[column][row] = in[row][column];
	__matrix_copy(out, result);
}
__SDK_INLINE void _mult_matrix4x4(vec_float4 *out, const vec_float4 *a, const vec_float4 *b)
{
	vec_float4 result[4];
	int column;
	for (column = 0; column < 4; column++)
		result[column] = _xform_vec4(b[column], a);
	__matrix_copy(out, result);
}
/* By Gauss and Jordan with pivots; a singular matrix gives infinities, as a division by 0 does. */
__SDK_INLINE void _inverse_matrix4x4(vec_float4 *out, const vec_float4 *in)
{
	vec_float4 left[4], right[4];
	int step, row;
	_transpose_matrix4x4(left, in);
	_identity_matrix4x4(right);
	for (step = 0; step < 4; step++) {
		vec_float4 kept;
		float scale;
		int best = step;
		for (row = step + 1; row < 4; row++)
			if (fabsf(left[row][step]) > fabsf(left[best][step]))
				best = row;
		kept = left[step], left[step] = left[best], left[best] = kept;
		kept = right[step], right[step] = right[best], right[best] = kept;
		scale = 1.0f / left[step][step];
		left[step] *= __sdk_all(scale);
		right[step] *= __sdk_all(scale);
		for (row = 0; row < 4; row++)
			if (row != step) {
				scale = left[row][step];
				left[row] -= left[step] * __sdk_all(scale);
				right[row] -= right[step] * __sdk_all(scale);
			}
	}
	_transpose_matrix4x4(out, right);
}
__SDK_INLINE void _scale_matrix4x4(vec_float4 *out, const vec_float4 *in, vec_float4 scales)
{
	int column;
	for (column = 0; column < 4; column++)
		out[column] = in[column] * __sdk_all(column < 3 ? scales[column] : 1.0f);
}
/* Each element in all places of a vector. */
__SDK_INLINE void _splat_matrix4x4(vec_float4 *out, const vec_float4 *in)
{
	int index;
	for (index = 15; index >= 0; index--)
		out[index] = __sdk_all(in[index / 4][index % 4]);
}
/* Of a rotation by an angle in radians about an axis of length 1. */
__SDK_INLINE void __rotation(vec_float4 *out, vec_float4 axis, float angle)
{
	float s = sinf(angle), c = cosf(angle), x = axis[0], y = axis[1], z = axis[2], t = 1.0f - c;
	out[0] = __sdk_of(t * x * x + c, t * x * y + s * z, t * x * z - s * y, 0);
	out[1] = __sdk_of(t * x * y - s * z, t * y * y + c, t * y * z + s * x, 0);
	out[2] = __sdk_of(t * x * z + s * y, t * y * z - s * x, t * z * z + c, 0);
	out[3] = __sdk_of(0, 0, 0, 1);
}
__SDK_INLINE void _rotate_matrix4x4(vec_float4 *out, vec_float4 axis, float angle)
{
	__rotation(out, axis, angle);
}
__SDK_INLINE void _frustum_matrix4x4(vec_float4 *out, float left, float right, float bottom, float top,
	float near, float far)
{
	out[0] = __sdk_of(2 * near / (right - left), 0, 0, 0);
	out[1] = __sdk_of(0, 2 * near / (top - bottom), 0, 0);
	out[2] = __sdk_of((right + left) / (right - left), (top + bottom) / (top - bottom),
		-(far + near) / (far - near), -1);
	out[3] = __sdk_of(0, 0, -2 * far * near / (far - near), 0);
}
/* The field of view is vertical, in radians. */
__SDK_INLINE void _perspective_matrix4x4(vec_float4 *out, float view, float aspect, float near, float far)
{
	float top = near * tanf(view / 2);
	_frustum_matrix4x4(out, -top * aspect, top * aspect, -top, top, near, far);
}
__SDK_INLINE void _ortho_matrix4x4(vec_float4 *out, float left, float right, float bottom, float top,
	float near, float far)
{
	out[0] = __sdk_of(2 / (right - left), 0, 0, 0);
	out[1] = __sdk_of(0, 2 / (top - bottom), 0, 0);
	out[2] = __sdk_of(0, 0, -2 / (far - near), 0);
	out[3] = __sdk_of(-(right + left) / (right - left), -(top + bottom) / (top - bottom),
		-(far + near) / (far - near), 1);
}
/* Quaternions: the vector's part first, the scalar last. */
__SDK_INLINE vec_float4 _mult_quat(vec_float4 a, vec_float4 b)
{
	vec_float4 product = __sdk_all(a[3]) * b + __sdk_all(b[3]) * a + _cross_product3(a, b);
	product[3] = a[3] * b[3] - _dot_product3(a, b);
	return product;
}
__SDK_INLINE void _quat_to_rot_matrix4x4(vec_float4 *out, vec_float4 q)
{
	float x = q[0], y = q[1], z = q[2], w = q[3];
	out[0] = __sdk_of(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y), 0);
	out[1] = __sdk_of(2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x), 0);
	out[2] = __sdk_of(2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y), 0);
	out[3] = __sdk_of(0, 0, 0, 1);
}
/* Of a rotation, whose diagonal has a sum above 0. */
__SDK_INLINE vec_float4 _rot_matrix4x4_to_quat(vec_float4 *matrix)
{
	float w = sqrtf(matrix[0][0] + matrix[1][1] + matrix[2][2] + 1.0f) / 2, by = 1.0f / (4 * w);
	return __sdk_of((matrix[1][2] - matrix[2][1]) * by, (matrix[2][0] - matrix[0][2]) * by,
			(matrix[0][1] - matrix[1][0]) * by, w);
}
/* Along the great arc between two orientations; along the line where they are near to each other. */
__SDK_INLINE vec_float4 _slerp_quat(vec_float4 q1, vec_float4 q2, float t)
{
	float cosine = _dot_product4(q1, q2), angle, first = 1 - t, second = t;
	if (cosine < 0) {
		q2 = -q2;
		cosine = -cosine;
	}
	if (cosine < 0.9999f) {
		angle = acosf(cosine);
		first = sinf(first * angle) / sinf(angle);
		second = sinf(t * angle) / sinf(angle);
	}
	return q1 * __sdk_all(first) + q2 * __sdk_all(second);
}
__SDK_INLINE void _cast_matrix4x4_to_dbl(vec_double2 *out, vec_float4 *in)
{
	int i;
	for (i = 7; i >= 0; i--)
		out[i] = (vec_double2){ in[i / 2][i % 2 * 2], in[i / 2][i % 2 * 2 + 1] };
}
__SDK_INLINE void _cast_matrix4x4_to_flt(vec_float4 *out, vec_double2 *in)
{
	int i;
	for (i = 0; i < 4; i++)
		out[i] = __sdk_of(in[2 * i][0], in[2 * i][1], in[2 * i + 1][0], in[2 * i + 1][1]);
}

#include <sidecore_end.h>
#endif

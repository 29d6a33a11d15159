/* The SDK's liblarge_matrix: matrices of floats in rows, whose strides count floats. */
#ifndef _LIBLARGE_MATRIX_H_
#define _LIBLARGE_MATRIX_H_
#include <sidecore_begin.h>

#include <math.h>
/* Programs count on it. */
#ifdef __SPU__
#include <spu_intrinsics.h>
#endif

#define __LARGE static __attribute__((unused))

/* Vectors. */

__LARGE int index_max_abs_col(int n, float *A, int col, int stride)
{
	int i, best = 0;
	for (i = 1; i < n; i++)
		if (fabsf(A[i * stride + col]) > fabsf(A[best * stride + col]))
			best = i;
	return best;
}
__LARGE int index_max_abs_vec(int n, float *dx) { return index_max_abs_col(n, dx, 0, 1); }
__LARGE void madd_number_vector(int n, float da, float x[], float y[])
{
	int i;
	for (i = 0; i < n; i++)
		y[i] += da * x[i];
}
__LARGE void nmsub_number_vector(int n, float da, float x[], float y[]) { madd_number_vector(n, -da, x, y); }
__LARGE void madd_vector_vector(int m, int n, float *col, int c_stride, float *row, float *A, int a_stride)
{
	int i;
	for (i = 0; i < m; i++)
		madd_number_vector(n, col[i * c_stride], row, A + i * a_stride);
}
__LARGE void nmsub_vector_vector(int m, int n, float *col, int c_stride, float *row, float *A, int a_stride)
{
	int i;
	for (i = 0; i < m; i++)
		nmsub_number_vector(n, col[i * c_stride], row, A + i * a_stride);
}
__LARGE void scale_matrix_col(int n, float scale_factor, float *A, int col, int stride)
{
	int i;
	for (i = 0; i < n; i++)
		A[i * stride + col] *= scale_factor;
}
__LARGE void scale_vector(int n, float scale_factor, float *x) { scale_matrix_col(n, scale_factor, x, 0, 1); }
__LARGE void swap_vectors(int n, float *sx, float *sy)
{
	int i;
	for (i = 0; i < n; i++) {
		float kept = sx[i];
		sx[i] = sy[i];
		sy[i] = kept;
	}
}

/* Matrices. */

/* Exchanges row i and row ipiv[i], for i from k1 to before k2. */
__LARGE void swap_matrix_rows(int n, float *A, int lda, int k1, int k2, int *ipiv)
{
	int i;
	for (i = k1; i < k2; i++)
		if (ipiv[i] != i)
			swap_vectors(n, A + i * lda, A + ipiv[i] * lda);
}
__LARGE void transpose_matrix(int m, int n, float *A, int lda, float *B, int ldb)
{
	int i, j;
	for (i = 0; i < m; i++)
		for (j = 0; j < n; j++)
			B[j * ldb + i] = A[i * lda + j];
}
/* C (m by p) has the product of A (m by n) and B (n by p) added, or taken away. */
__LARGE void madd_matrix_matrix(int m, int p, int n, float *A, int lda, float *B, int ldb, float *C, int ldc)
{
	int i, k;
	for (i = 0; i < m; i++)
		for (k = 0; k < n; k++)
			madd_number_vector(p, A[i * lda + k], B + k * ldb, C + i * ldc);
}
__LARGE void nmsub_matrix_matrix(int m, int p, int n, float *A, int lda, float *B, int ldb, float *C, int ldc)
{
	int i, k;
	for (i = 0; i < m; i++)
		for (k = 0; k < n; k++)
			nmsub_number_vector(p, A[i * lda + k], B + k * ldb, C + i * ldc);
}

/* Equations: A's lower part with ones on the diagonal, or its upper part. */

__LARGE void solve_unit_lower(int m, int n, const float *A, int lda, float *B, int ldb)
{
	int i, k;
	for (i = 1; i < m; i++)
		for (k = 0; k < i; k++)
			nmsub_number_vector(n, A[i * lda + k], B + k * ldb, B + i * ldb);
}
__LARGE void solve_unit_lower_1(int m, const float *A, int lda, float *b) { solve_unit_lower(m, 1, A, lda, b, 1); }
__LARGE void solve_upper_1(int m, const float *A, int lda, float *b)
{
	int i, k;
	for (i = m - 1; i >= 0; i--) {
		for (k = i + 1; k < m; k++)
			b[i] -= A[i * lda + k] * b[k];
		b[i] /= A[i * lda + i];
	}
}
/* A (m by n) as P L U in its place; row i was exchanged with row ipiv[i]. 0; the number, from 1, of the first
 * element of U's diagonal that is 0; or less than 0 for sizes that are none. */
__LARGE int lu2_decomp(int m, int n, float *A, int lda, int *ipiv)
{
	int i, j, singular = 0;
	if (m < 0 || n < 0 || lda < n)
		return m < 0 ? -1 : n < 0 ? -2 : -4;
	for (j = 0; j < m && j < n; j++) {
		int best = j + index_max_abs_col(m - j, A + j * lda, j, lda);
		ipiv[j] = best;
		if (A[best * lda + j] == 0) {
			singular = singular ? singular : j + 1;
			continue;
		}
		if (best != j)
			swap_vectors(n, A + j * lda, A + best * lda);
		for (i = j + 1; i < m; i++) {
			A[i * lda + j] /= A[j * lda + j];
			nmsub_number_vector(n - j - 1, A[i * lda + j], A + j * lda + j + 1,
					    A + i * lda + j + 1);
		}
	}
	return singular;
}
__LARGE int lu3_decomp(int m, int n, float *A, int lda, int *ipiv) { return lu2_decomp(m, n, A, lda, ipiv); }
__LARGE int lu_decomp_block(int m, int n, float *A, int lda, int *ipiv) { return lu2_decomp(m, n, A, lda, ipiv); }
/* b becomes the solution of A x = b; what lu2_decomp returns. */
__LARGE int solve_linear_system_1(int n, float *A, int lda, int *ipiv, float *b)
{
	int result = lu2_decomp(n, n, A, lda, ipiv);
	if (result)
		return result;
	swap_matrix_rows(1, b, 1, 0, n, ipiv);
	solve_unit_lower_1(n, A, lda, b);
	solve_upper_1(n, A, lda, b);
	return 0;
}

#include <sidecore_end.h>
#endif

/* Vector literals by macros, for compilers of both forms. */
#ifndef _VEC_LITERAL_H_
#define _VEC_LITERAL_H_

#define VEC_LITERAL(type, ...) ((type){ __VA_ARGS__ })
#define VEC_SPLAT_U8(x) ((vec_uchar16){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x })
#define VEC_SPLAT_S8(x) ((vec_char16){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x })
#define VEC_SPLAT_U16(x) ((vec_ushort8){ x, x, x, x, x, x, x, x })
#define VEC_SPLAT_S16(x) ((vec_short8){ x, x, x, x, x, x, x, x })
#define VEC_SPLAT_U32(x) ((vec_uint4){ x, x, x, x })
#define VEC_SPLAT_S32(x) ((vec_int4){ x, x, x, x })
#define VEC_SPLAT_F32(x) ((vec_float4){ x, x, x, x })
#define VEC_SPLAT_U64(x) ((vec_ullong2){ x, x })
#define VEC_SPLAT_S64(x) ((vec_llong2){ x, x })
#define VEC_SPLAT_F64(x) ((vec_double2){ x, x })

#endif

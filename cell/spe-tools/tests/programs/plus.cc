// C++ for a store: constructors of statics, virtual functions, new, templates, vectors.
#include <cstdio>
#include <new>
#include <spu_intrinsics.h>

struct Shape {
	virtual ~Shape() {}
	virtual int area() const = 0;
};
struct Square : Shape {
	int side;
	explicit Square(int n) : side(n) {}
	int area() const { return side * side; }
};
template <class T> T twice(T x) { return spu_add(x, x); }
static Square fixed(3);
struct Line {
	int words[32] __attribute__((aligned(128)));
};

int main(unsigned long long, unsigned long long, unsigned long long)
{
	Shape *shape = new Square(5);
	vector float v = twice((vector float){1, 2, 3, 4});
	vector unsigned int rolled = spu_rlqwbyte(spu_promote(9u, 0), 4);
	printf("%d %d %g %u\n", fixed.area(), shape->area(), spu_extract(v, 2), spu_extract(rolled, 3));
	delete shape;
	Line *line = new Line, *lines = new Line[3];
	bool aligned = (((unsigned long)line | (unsigned long)lines) & 127) == 0;
	delete line;
	delete[] lines;
	if (!aligned)
		return 1;
	return 0;
}

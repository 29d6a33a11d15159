/* A host that puts addresses into words; the exit status is the number of those that do not fit. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

static int bad;
static void fits(const void *place)
{
	bad += (const void *)(unsigned long)(unsigned int)(unsigned long)place != place;
}

static void *thread(void *argument)
{
	int local;
	void *memory = malloc(100);
	fits(&local);
	fits(memory);
	free(memory);
	return argument;
}

int main(int count, char **arguments)
{
	pthread_t id;
	void *aligned, *result;
	int local;
	fits(&local);
	fits(malloc(64 << 20));
	fits(posix_memalign(&aligned, 128, 1 << 20) ? arguments : aligned);
	fits(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	bad += pthread_create(&id, 0, thread, &local) != 0;
	bad += pthread_join(id, &result) != 0 || result != &local;
	return bad + (count != 1);
}

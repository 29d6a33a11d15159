/* A host that puts addresses into words; the exit status is the number of those that do not fit. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int bad;
static void fits(const void *place)
{
	bad += (const void *)(unsigned long)(unsigned int)(unsigned long)place != place;
}

/* Nothing lies within a GiB above the break: wherever it begins, the heap can grow. */
static int heap_has_room(void)
{
	unsigned long long from, to, end = (unsigned long)sbrk(0);
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int room = maps != 0;
	while (maps && fgets(line, sizeof line, maps))
		if (sscanf(line, "%llx-%llx", &from, &to) == 2 && from >= end && from - end < 1 << 30)
			room = 0;
	if (maps)
		fclose(maps);
	return room;
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
	for (local = 0; local < 1000; local++)
		fits(mmap(0, 1 + local * 64, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	return bad + (count != 1) + !heap_has_room();
}

/* The floor of create + first command: from nothing to the end of /bin/true in a new room. The room's directories are
 * made in the measured part, since no sandbox can do without; its end is not measured, since the sandbox lives on. */
#include "room.h"
#include "rhythm.h"

static int64_t once(void *with)
{
	struct room *room = with;
	int64_t start = now_ns();
	room_open(room);
	room_await(room);
	int64_t took = now_ns() - start;
	room_close(room);
	return took;
}

int main(int argc, char **argv)
{
	struct rhythm rhythm = rhythm_of(argc, argv, 5, "LOWER DIR");
	struct room room = { .lower = argv[3], .dir = argv[4] };
	room_prepare();
	beat(rhythm, once, &room);
	return 0;
}

/* The floor of a command in a live sandbox: a room that is there already, asked over a socketpair. */
#include "room.h"
#include "rhythm.h"

static int64_t once(void *with)
{
	int64_t start = now_ns();
	room_run(with);
	return now_ns() - start;
}

int main(int argc, char **argv)
{
	struct rhythm rhythm = rhythm_of(argc, argv, 5, "LOWER DIR");
	struct room room = { .lower = argv[3], .dir = argv[4] };
	room_prepare();
	room_open(&room);
	room_await(&room);
	beat(rhythm, once, &room);
	room_close(&room);
	return 0;
}

"""The demo, ``shmgpu demo``: real data, 32 processes, 2 sessions, and proof of the zero copies.

From the ground up:

    digits   the data            network  the model; knows nothing of shmgpu
    stage    drives, counts and watches the clients of either side
    serve    the work through shmgpu, as a user would write it
    queues   the same work through multiprocessing
    audit    frames counted inside beside bytes counted outside
    report   what is printed     run      all of it in order

Never imports torch before it is run.
"""

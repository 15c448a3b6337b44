"""Runs functions on batches in parallel to the loop: in processes that get batches by shared memory, or in threads.

One crew of workers serves a stream for all its epochs. Results come in the order of the batches, whichever worker is
done first, and the number of batches in the crew is limited. No batch goes through a pipe: all but the smallest buffers
of its pickle are in blocks of anonymous memory that both processes map, and become tensors there without a copy.

- `pickling.py`: an object as a pickle and separate buffers
- `memory.py`: blocks of memory, their owners, and when they are free again
- `channel.py`: short messages, and the files of blocks, between two processes
- `sending.py`: the job of workers, as bytes
- `worker.py`: the main function of a worker process
- `processes.py`, `threads.py`: crews
- `ordered.py`: batches through a crew, in order
"""

"""Runs functions on batches beside the loop: in processes that receive batches by shared memory, or in threads.

One crew of workers serves a stream for all its epochs. What it is given and what it returns keeps its order, whoever is
done first; what it holds at most is fixed. Nothing of a batch goes through a pipe: the parts of a `pickle` beyond a few
bytes lie in blocks of anonymous memory that both processes have mapped, and are tensors there without a copy.

- `pickling.py`: an object as a pickle and the buffers beside it
- `memory.py`: blocks of memory, who owns them and when they are free again
- `channel.py`: short messages, and the files of blocks, between two processes
- `sending.py`: what workers are to do, as bytes
- `worker.py`: the main function of a worker process
- `processes.py`, `threads.py`: crews
- `ordered.py`: batches through a crew, in their order
"""

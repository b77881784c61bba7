"""vLLM servers as samplers, over HTTP and in processes of their own. A policy's way to a server and back:

1. `interpreter`  finds a Python that has vLLM (`probe` looks, inside it)
2. `servers`      starts servers there, waits until they are healthy, ends them (`guard` ends them with their parent,
                  `server_log` reads why one failed)
3. `client`       one server's routes; `answers` turns what it says into our types
4. `expected`     what a server must be, compared with what it is
5. `engine`       one server of a run: prompts to completions, weights to the server
6. `fleet`        all servers of a run, and how one that is lost comes back
7. `sampler`      the fleet behind the interface of a sampler
8. `transfer`     how weights reach the servers: by `plugin`, inside them, from a file, or by `nccl` between GPUs

`commands` is `tocsin vllm`. Only `plugin` and `nccl` import vllm or torch.
"""

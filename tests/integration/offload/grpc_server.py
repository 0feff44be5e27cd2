"""A gRPC server, in a process of its own: each call takes the seconds of its message."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class Sleep(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Sleep, then answer; or sleep and answer three times."""

    def service(self, call: Any) -> Any:
        if call.method == "/once":
            return grpc.unary_unary_rpc_method_handler(self.once)
        return grpc.unary_stream_rpc_method_handler(self.thrice)

    def once(self, message: bytes, _: Any) -> bytes:
        time.sleep(float(message))
        return b"done"

    def thrice(self, message: bytes, context: Any) -> Iterator[bytes]:
        for _ in range(3):
            yield self.once(message, context)


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(100), [Sleep()])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()

import asyncio

loop = asyncio.new_event_loop()

if __name__ == "__main__":
    loop.run_until_complete(asyncio.sleep(0))

"""Prefill over a shared network, in plain Python: the independent oracle of the simulator.

Usage: network_oracle.py > scenarios.json   (deterministic; a few seconds)

Written from the conventions alone (a message takes no bandwidth until its latency is over, then
flows at the max-min fair rate; schedules kvr and tsp; send orders async, block and fifo; background
flows), and otherwise than the engine under test: no events and no incremental rates. Time goes from
one change of anything to the next, found by looking at everything; processes are generators; rates
are found for all flows anew, by raising all of them together until links are full.
"""

import json
import random


class Message:
    def __init__(self, links, latency, size):
        self.links, self.latency, self.left = links, latency, float(size)
        self.ready = None  # when its bytes may flow
        self.delivered = False


def route_of(scenario, source, destination):
    """Names of links, and the latency."""
    latency = scenario["link_latency_s"]
    if scenario["topology"] == "switch":
        return [("up", source), ("down", destination)], 2 * latency
    n = scenario["devices"]
    forward = (destination - source) % n
    step, hops = (1, forward) if forward <= n - forward else (-1, n - forward)
    links, at = [], source
    for _ in range(hops):
        links.append((at, (at + step) % n))
        at = (at + step) % n
    return links, hops * latency


def fair_rates(flows, bandwidth):
    """The rate of each flow: all rise together; a flow stops when one of its links is full."""
    rates = [0.0] * len(flows)
    rising = set(range(len(flows)))
    while rising:
        used, count = {}, {}
        for i, flow in enumerate(flows):
            for link in flow.links:
                used[link] = used.get(link, 0.0) + rates[i]
                count[link] = count.get(link, 0) + (i in rising)
        room = {link: (bandwidth - used[link]) / count[link] for link in used if count[link]}
        step = min(room.values())
        full = {link for link, r in room.items() if r <= step * (1 + 1e-12)}
        for i in rising:
            rates[i] += step
        rising = {i for i in rising if not full.intersection(flows[i].links)}
    return rates


class Network:
    def __init__(self, scenario):
        self.scenario = scenario
        self.now = 0.0
        self.under_way = []
        self.queues = {i: [] for i in range(scenario["devices"])}
        self.delivered = 0

    def send(self, sender, receiver, size):
        links, latency = route_of(self.scenario, sender, receiver)
        message = Message(links, latency, size)
        message.sender = sender
        if self.scenario["send_order"] == "fifo":
            self.queues[sender].append(message)
            if len(self.queues[sender]) == 1:
                self.leave(message)
        else:
            self.leave(message)
        return message

    def leave(self, message):
        message.ready = self.now + message.latency
        self.under_way.append(message)

    def deliver(self, message):
        message.delivered = True
        self.under_way.remove(message)
        if message.sender is None:
            return
        self.delivered += 1
        queue = self.queues[message.sender]
        if queue and queue[0] is message:
            queue.pop(0)
            if queue:
                self.leave(queue[0])


def kvr(scenario, network, i, mailbox):
    tokens = sum(scenario["partition_tokens"][: i + 1])
    last = scenario["devices"] - 1
    for layer in range(scenario["layers"]):
        yield scenario["compute_before_exchange_s"][i]
        if i > 0:
            while not ((i - 1, layer) in mailbox and mailbox[i - 1, layer].delivered):
                yield None
        if i < last:
            size = tokens * scenario["bytes_per_token_layer"]
            sent = mailbox[i, layer] = network.send(i, i + 1, size)
            while scenario["send_order"] == "block" and not sent.delivered:
                yield None
        yield scenario["compute_after_exchange_s"][i]


def tsp(scenario, network, i, mailbox):
    n = scenario["devices"]
    for layer in range(scenario["layers"]):
        yield scenario["compute_before_exchange_s"][i]
        for step in range(n - 1):
            size = scenario["partition_tokens"][(i - step) % n] * scenario["bytes_per_token_layer"]
            sent = mailbox[i, layer, step] = network.send(i, (i + 1) % n, size)
            key = ((i - 1) % n, layer, step)
            while not (key in mailbox and mailbox[key].delivered):
                yield None
            while scenario["send_order"] == "block" and not sent.delivered:
                yield None
        yield scenario["compute_after_exchange_s"][i]


def play(scenario):
    network = Network(scenario)
    mailbox = {}
    schedule = {"kvr": kvr, "tsp": tsp}[scenario["schedule"]]
    n = scenario["devices"]
    processes = [schedule(scenario, network, i, mailbox) for i in range(n)]
    busy_until = [0.0] * n  # None: waits for messages
    finish = [None] * n
    background = sorted(scenario.get("background_flows", []), key=lambda flow: flow["start_s"])

    def step_all():
        """Everything that can happen now, until nothing more does."""
        moved = True
        while moved:
            moved = False
            while background and background[0]["start_s"] <= network.now:
                flow = background.pop(0)
                links, latency = route_of(scenario, flow["source"], flow["destination"])
                message = Message(links, latency, flow["bytes"])
                message.sender = None
                network.leave(message)
            for i in range(n):
                while finish[i] is None and (busy_until[i] is None or busy_until[i] <= network.now):
                    try:
                        seconds = next(processes[i])
                    except StopIteration:
                        finish[i] = network.now
                        break
                    if seconds is None:
                        busy_until[i] = None
                        break
                    busy_until[i] = network.now + seconds
                    moved = True
            for message in [m for m in network.under_way if m.ready <= network.now and m.left <= 0]:
                network.deliver(message)
                moved = True

    step_all()
    while None in finish:
        flows = [m for m in network.under_way if m.ready <= network.now]
        rates = fair_rates(flows, scenario["link_bytes_per_s"])
        ends = [network.now + m.left / rate for m, rate in zip(flows, rates)]
        times = ends + [m.ready for m in network.under_way if m.ready > network.now]
        times += [t for t in busy_until if t is not None and t > network.now]
        times += [flow["start_s"] for flow in background[:1]]
        then = min(times)
        for message, rate, end in zip(flows, rates, ends):
            message.left -= rate * (then - network.now)
            if end <= then * (1 + 1e-15):
                message.left = 0.0
        network.now = then
        step_all()
    return finish, network.delivered


def scenarios():
    draw = random.Random(20260117)
    for number in range(48):
        devices = draw.choice([2, 3, 4, 5, 6, 8])
        schedule = ["kvr", "tsp"][number % 2]
        bandwidth = draw.choice([1e9, 3e9, 10e9, 25e9, 100e9, 300e9])
        uneven = number % 3 != 0
        tokens = [draw.randint(200, 1500) if uneven else 700 for _ in range(devices)]
        scenario = {
            "schedule": schedule,
            "topology": ["ring", "switch"][number // 2 % 2],
            "devices": devices,
            "layers": draw.randint(2, 9),
            "link_bytes_per_s": bandwidth,
            "link_latency_s": draw.choice([0, 2e-6, 1e-5, 5e-5]),
            "bytes_per_token_layer": draw.choice([1024, 4096, 16384]),
            "partition_tokens": tokens,
            "compute_before_exchange_s": [t * draw.uniform(4e-7, 8e-7) for t in tokens],
            "compute_after_exchange_s": [t * draw.uniform(2e-6, 4e-6) for t in tokens],
            "send_order": ["async", "block", "fifo"][number // 4 % 3],
        }
        if number % 8 >= 4:
            span = scenario["layers"] * 3e-6 * max(tokens)
            scenario["background_flows"] = []
            for _ in range(draw.randint(1, 12)):
                source = draw.randrange(devices)
                near = [(source + 1) % devices, (source - 1) % devices]
                far = [d for d in range(devices) if d != source and 2 * (d - source) != devices
                       and 2 * (source - d) != devices] or near
                scenario["background_flows"].append({
                    "start_s": draw.uniform(0, span),
                    "source": source,
                    "destination": draw.choice(near if draw.random() < 0.5 else far),
                    "bytes": draw.randint(1, int(0.2 * span * bandwidth)),
                })
        yield scenario


def main():
    rows = []
    for scenario in scenarios():
        finish, messages = play(scenario)
        rows.append({"scenario": scenario, "finish_s": finish, "messages": messages})
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")


if __name__ == "__main__":
    main()

// node roundtrip.js LEVEL SUBSCRIBE_PORT PUBLISH_PORT TOPIC...
// Subscribes with mqtt.js at one node, publishes each topic at QoS 0, 1 and 2 at the other, and
// prints what arrived as JSON: [[topic, payload, qos], ...].
const mqtt = require("mqtt");

const [level, subscribePort, publishPort, ...topics] = process.argv.slice(2);
const wanted = topics.length * 3;
const received = [];

async function main() {
  const options = { protocolVersion: Number(level) };
  const subscriber = await mqtt.connectAsync(`mqtt://127.0.0.1:${subscribePort}`, options);
  const publisher = await mqtt.connectAsync(`mqtt://127.0.0.1:${publishPort}`, options);
  const done = new Promise((resolve) => {
    subscriber.on("message", (topic, payload, packet) => {
      received.push([topic, payload.toString(), packet.qos]);
      if (received.length === wanted) resolve();
    });
  });
  await subscriber.subscribeAsync(topics, { qos: 2 });
  for (const topic of topics) {
    for (const qos of [0, 1, 2]) {
      await publisher.publishAsync(topic, `q${qos}`, { qos });
    }
  }
  await done;
  console.log(JSON.stringify(received));
  await publisher.endAsync();
  await subscriber.endAsync();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
